"""A real redis-server on a free port, for tests about shared state.

Where redis-server is not installed the tests skip and say so; under CI=true they fail instead, because a
suite that silently ran on one store proves nothing about the other.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest


class RedisServer:
    """One server process; `kill` is SIGKILL, `start` brings it back on the same port and data."""

    def __init__(self, directory: Path, append_only: bool = True) -> None:
        self.port = _free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._directory, self._append_only = directory, append_only
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        arguments = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        arguments += ["--dir", str(self._directory), "--loglevel", "warning"]
        arguments += ["--appendonly", "yes" if self._append_only else "no", "--appendfsync", "always"]
        self._process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        until = time.monotonic() + 10
        while not _answers(self.port):
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"redis-server on port {self.port} did not start (exit {self._process.poll()})")
            time.sleep(0.02)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait(5)

    def freeze(self) -> None:
        """The process stops, its connections stay open: what an unreachable host looks like."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.thaw()
            self.kill()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


def require_redis() -> None:
    """Skips the test without redis-server; fails it where it must run."""
    if shutil.which("redis-server") is not None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail("redis-server is not installed, and in CI the Redis half of this suite must run")
    pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as link:
            link.sendall(b"PING\r\n")
            return link.recv(7) == b"+PONG\r\n"
    except OSError:
        return False
