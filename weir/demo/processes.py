"""The demo's processes: the real command line on free ports, a log each, gone when the demo is.

Each is started as a user would start it. They die with the demo even when it is killed outright, and
`Troupe` proves at its end that none is left.

Must not know: what the processes do, what is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from runtime.child import PARENT_VARIABLE
from weir.demo.errors import DemoError

STOP_GRACE_S = 15.0
_TAIL_LINES = 12


def free_address() -> str:
    """127.0.0.1 and a port that nobody had a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@dataclass(slots=True)
class Actor:
    """One running process and its log."""

    name: str
    process: asyncio.subprocess.Process
    log: Path

    def tail(self) -> str:
        """The last lines it wrote."""
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-_TAIL_LINES:])

    def check(self) -> None:
        """Raises DemoError when it has ended."""
        if self.process.returncode is not None:
            raise DemoError(f"{self.name} ended with {self.process.returncode}; the end of {self.log}:\n{self.tail()}")


class Troupe:
    """All processes of one demo; an async context manager that stops them."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._actors: list[Actor] = []
        self._seen: dict[int, float] = {}

    async def start(self, name: str, *arguments: str) -> Actor:
        """Runs `weir ARGUMENTS…` with its output in `<run_dir>/<name>.log`."""
        log = self._run_dir / f"{name}.log"
        environment = {**os.environ, PARENT_VARIABLE: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        with log.open("ab") as handle:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "weir.cli.main", *arguments,
                stdin=asyncio.subprocess.DEVNULL, stdout=handle, stderr=handle, env=environment,
                start_new_session=True,  # Ctrl-C goes to the demo, which stops them in order
            )  # fmt: skip
        actor = Actor(name, process, log)
        self._actors.append(actor)
        return actor

    async def until(self, what: str, ready: Callable[[], Awaitable[bool]], seconds: float) -> float:
        """Waits for `ready`, while every process lives; returns the seconds it took. Raises DemoError."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not await ready():
            for actor in self._actors:
                actor.check()
            if loop.time() - began > seconds:
                raise DemoError(f"{what} took more than {seconds:.0f} s; the logs are in {self._run_dir}")
            await asyncio.sleep(0.2)
        self.note_descendants()
        return loop.time() - began

    def note_descendants(self) -> None:
        """Remembers every process below the demo, so that the end can prove them gone."""
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                self._seen[child.pid] = child.create_time()

    def left_over(self) -> list[int]:
        """Pids of processes once seen below the demo that still run."""
        return [pid for pid, began in self._seen.items() if _alive(pid, began)]

    async def stop(self) -> None:
        """Ends all, the last started first; what does not end in time is killed."""
        self.note_descendants()
        for actor in reversed(self._actors):
            if actor.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    actor.process.terminate()
        await asyncio.gather(*(_ended(actor) for actor in self._actors))
        await self._clear()

    async def _clear(self) -> None:
        """Children of a process that was killed follow it at once; give the kernel a moment, then insist."""
        for _ in range(20):
            if not self.left_over():
                return
            await asyncio.sleep(0.1)
        for pid in self.left_over():
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        raise DemoError(f"processes outlived the demo and were killed; the logs are in {self._run_dir}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An interrupt must not interrupt the clearing away.
        await asyncio.shield(asyncio.ensure_future(self.stop()))


async def _ended(actor: Actor) -> None:
    try:
        async with asyncio.timeout(STOP_GRACE_S):
            await actor.process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            actor.process.kill()
        await actor.process.wait()


def _alive(pid: int, began: float) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return process.create_time() == began and process.status() != psutil.STATUS_ZOMBIE
    return False
