"""Groups of child processes that live and die together, restarted with a bounded backoff.

One process of a group that exits takes the others with it, and the whole group starts again: a
tensor-parallel group with a dead rank can only hang. Children die with their parent, so that a
killed server leaves nothing behind: every child's main calls `begin()` or `die_with_parent()` first.

Must be used from the main thread: the kernel ties a child's life to the thread that made it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from runtime.descriptors import allow_all

PARENT_VARIABLE = "WEIR_PARENT_PID"
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Asks the kernel to kill this process when its parent goes; exits when it has gone already."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        raise SystemExit("the parent process has gone")


def begin() -> None:
    """What every process that serves does first: dies with its parent, and allows itself as many files as it may."""
    die_with_parent()
    allow_all()


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One process to run. `environment` is added to this process's own, of which it gets all but `withheld`.

    Names of withheld variables are in capitals; they count however they are written.
    """

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    withheld: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds between restarts: doubled from `first_s` to `most_s`, reset after `healthy_s` ready."""

    first_s: float = 0.2
    most_s: float = 10.0
    healthy_s: float = 30.0


class Group:
    """Processes that live and die together.

    `specs` is called before every start, so that each attempt can take fresh ports or sockets.
    `ready` is awaited after the start and returns once the group serves; it is cancelled when a
    process exits first. `changed` is told of every state: starting, ready, down or stopped. A group
    that is stopped has `grace_s` to end by itself; one that lost a process is killed at once.
    """

    def __init__(
        self,
        name: str,
        specs: Callable[[], Sequence[ChildSpec]],
        ready: Callable[[], Awaitable[None]],
        changed: Callable[[str, str], None] | None = None,
        backoff: Backoff | None = None,
        *,
        grace_s: float = 5.0,
    ) -> None:
        self.name = name
        self.state = "starting"
        self.detail = ""
        self.restarts = 0
        self._specs, self._ready, self._changed = specs, ready, changed
        self._backoff = backoff or Backoff()
        self._grace_s = grace_s
        self._ready_at: float | None = None
        self._processes: list[asyncio.subprocess.Process] = []

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the processes that run now."""
        return tuple(process.pid for process in self._processes if process.returncode is None)

    async def run(self) -> None:
        """Keeps the group running until cancelled; then stops it."""
        delay = self._backoff.first_s
        try:
            while True:
                self._ready_at = None
                self._say("starting", "")
                detail = await self._once()
                if self._was_healthy():
                    delay = self._backoff.first_s
                self._say("down", detail)
                await asyncio.sleep(delay)
                delay = min(delay * 2, self._backoff.most_s)
                self.restarts += 1
        finally:
            await self._stop(grace_s=0.0)
            self._say("stopped", "")

    async def _once(self) -> str:
        """One life of the group; returns what ended it."""
        specs = self._specs()
        try:
            for spec in specs:
                self._processes.append(await self._spawn(spec))
            exits = [asyncio.create_task(process.wait()) for process in self._processes]
            ready = asyncio.ensure_future(self._ready())
            try:
                await asyncio.wait([ready, *exits], return_when=asyncio.FIRST_COMPLETED)
                if ready.done() and not ready.cancelled() and ready.exception() is None:
                    self._ready_at = asyncio.get_running_loop().time()
                    self._say("ready", "")
                    await asyncio.wait(exits, return_when=asyncio.FIRST_COMPLETED)
                return self._obituary(specs, ready)
            finally:
                for task in (ready, *exits):
                    task.cancel()
                await asyncio.gather(ready, *exits, return_exceptions=True)
        except asyncio.CancelledError:
            await self._stop(self._grace_s)
            raise
        finally:
            await self._stop(grace_s=0.0)

    def _was_healthy(self) -> bool:
        """Time spent starting is no health: a group that dies while starting is tried ever less often."""
        if self._ready_at is None:
            return False
        return asyncio.get_running_loop().time() - self._ready_at > self._backoff.healthy_s

    def _obituary(self, specs: Sequence[ChildSpec], ready: asyncio.Future[None]) -> str:
        for spec, process in zip(specs, self._processes, strict=True):
            if process.returncode is not None:
                return f"{spec.name} exited with {process.returncode}"
        error = ready.exception() if ready.done() and not ready.cancelled() else None
        return f"{self.name} never became ready: {error}"

    async def _spawn(self, spec: ChildSpec) -> asyncio.subprocess.Process:
        inherited = {name: value for name, value in os.environ.items() if name.upper() not in spec.withheld}
        environment = {**inherited, **spec.environment, PARENT_VARIABLE: str(os.getpid())}
        return await asyncio.create_subprocess_exec(
            *spec.arguments, env=environment, stdin=asyncio.subprocess.DEVNULL, start_new_session=False
        )

    async def _stop(self, grace_s: float) -> None:
        """Leaves no process behind; those still there after `grace_s`, for all of them together, are killed."""
        alive = [process for process in self._processes if process.returncode is None]
        if grace_s and alive:
            for process in alive:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
            exits = [asyncio.ensure_future(process.wait()) for process in alive]
            await asyncio.wait(exits, timeout=grace_s)
        for process in alive:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await process.wait()
        self._processes = []

    def _say(self, state: str, detail: str) -> None:
        self.state, self.detail = state, detail
        if self._changed is not None:
            self._changed(state, detail)
