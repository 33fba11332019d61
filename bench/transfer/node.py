"""A real edge node with an empty or a used store, in processes of its own, watched from outside.

Started as a user would start it: launcher, front and engine. It has no upstream, so that every answer is
its own. Must not know: what is measured with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil

from runtime.child import PARENT_VARIABLE

_POLL_S = 0.1
_STOP_S = 15.0
_ASK_S = 30.0
_LOG_LINES = 12


class NodeFailed(Exception):
    """A node ended, or did not do in time what was waited for."""


@dataclass(slots=True)
class Node:
    """One node; an async context manager that starts it and stops it. `folder` is its own."""

    folder: Path
    repository: str
    root: Path
    settings: dict[str, Any] = field(default_factory=dict)
    began: float = 0.0  # of the event loop's clock, when it was started last
    _process: subprocess.Popen[bytes] | None = None
    _client: httpx.AsyncClient = field(default_factory=lambda: httpx.AsyncClient(timeout=_ASK_S, trust_env=False))

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def grpc(self) -> str:
        """Where its front listens; once it does."""
        return str(self._addresses()["grpc"])

    @property
    def engine(self) -> str:
        """The engine's own socket, as a gRPC target."""
        return f"unix:{self.run_dir / 'engine.sock'}"

    def start(self) -> None:
        """Starts it (again), over whatever its store holds."""
        self.run_dir.mkdir(parents=True, exist_ok=True)
        (self.run_dir / "front.json").unlink(missing_ok=True)
        given = {
            "store_dir": self.store, "run_dir": self.run_dir, "repository": self.repository, "trusted_root": self.root,
            "http_address": "127.0.0.1:0", "grpc_address": "127.0.0.1:0", "threads": 1, "context_length": 512,
            "update_interval_s": 0.5, "keep_free_bytes": 64 << 20, "rehearse": False, **self.settings,
        }  # fmt: skip
        clean = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
        sets = [part for name, value in given.items() for part in ("--set", f"{name}={value}")]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "weir.cli.main", "edge", "serve", *sets],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**clean, PARENT_VARIABLE: str(os.getpid())},
            )  # fmt: skip
        self.began = asyncio.get_running_loop().time()

    async def kill(self) -> None:
        """As a power cut would: the launcher dies at once, and its children with it."""
        if self._process is None:
            return
        children = _children(self._process.pid)
        self._process.kill()
        await asyncio.to_thread(self._process.wait)
        await asyncio.to_thread(psutil.wait_procs, children, 5.0)
        self._process = None

    async def stop(self) -> None:
        """In order; what does not end in time is killed."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(self._process.wait, _STOP_S)
        except subprocess.TimeoutExpired:
            await self.kill()
        self._process = None

    async def answers(self, most_s: float, precision: int | None = None, release: str = "") -> float:
        """Seconds from the start until it answered by itself, from that precision and release where given.

        Raises NodeFailed when that takes `most_s` from now on, or when the node has ended.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + most_s
        while True:
            self.check()
            answer = await self._ask()
            served = {} if answer is None else answer.get("weir", {})
            if served and precision in (None, served.get("precision")) and release in ("", served.get("release")):
                return loop.time() - self.began
            if loop.time() > ends:
                raise NodeFailed(f"not within {most_s:.0f} s; the end of its log:\n{self.tail()}")
            await asyncio.sleep(_POLL_S)

    def check(self) -> None:
        """Raises NodeFailed when the node has ended."""
        if self._process is None or self._process.poll() is not None:
            raise NodeFailed(f"the node has ended; the end of its log:\n{self.tail()}")

    def tail(self) -> str:
        """The last lines it wrote."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-_LOG_LINES:])
        return ""

    async def _ask(self) -> dict[str, Any] | None:
        """One token of an answer; None while there is none."""
        body = {
            "model": "", "messages": [{"role": "user", "content": "Say yes."}], "max_tokens": 1,
            "weir": {"constraint": "edge_only"},
        }  # fmt: skip
        try:
            response = await self._client.post(f"http://{self._addresses()['http']}/v1/chat/completions", json=body)
        except (OSError, KeyError, ValueError, httpx.TransportError):
            return None
        return dict(response.json()) if response.status_code == 200 else None

    def _addresses(self) -> dict[str, Any]:
        return dict(json.loads((self.run_dir / "front.json").read_text()))

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(self.stop())
        await self._client.aclose()


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
