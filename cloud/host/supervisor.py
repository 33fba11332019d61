"""Keeps one group of ranks running and watches its pulse.

    a rank exits                         the whole group is stopped and started again
    a rank's beat grows old              the process hangs or is stopped: killed, then as above
    the batch loop stands still          a peer does not answer or a device hangs: killed, then as above

Every life of the group gets a fresh port, fresh beats and a fresh connection to rank 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cloud.rank.beat import Beat, beat_path, read_beat
from cloud.rank.spec import RankSpec, rank_environment
from runtime.child import ChildSpec, Group
from wire.deadline import Deadline
from wire.description import ModelInfo
from wire.engine import RankStatus
from wire.errors import WeirError
from wire.grpc_client import EngineControlClient, InferenceClient
from wire.service import Call

_log = logging.getLogger("weir.host")

# A step may take long (a big prefill on a slow core), a beat may not.
STALL_FACTOR = 6.0


@dataclass(frozen=True, slots=True)
class Connection:
    """One life of rank 0, reachable."""

    inference: InferenceClient
    control: EngineControlClient
    model: ModelInfo

    async def close(self) -> None:
        await self.inference.close()
        await self.control.close()


class Pulse:
    """Decides from beats which rank hangs. Pure: time and beats are passed in."""

    def __init__(self, timeout_s: float, interval_s: float) -> None:
        self._timeout_s, self._interval_s = timeout_s, interval_s
        self._turns: dict[int, tuple[int, int, float]] = {}  # rank: (pid, turns, since)
        self._looked_at: float | None = None

    def hung(self, beats: tuple[Beat, ...], now: float) -> tuple[Beat, str] | None:
        """The first rank that hangs and why; None while all are well."""
        late = self._looked_at is not None and now - self._looked_at > self._interval_s + self._timeout_s / 2
        self._looked_at = now
        if late:
            # This process did not run for a while; perhaps the ranks did not either. Look again first.
            self._turns.clear()
            return None
        for beat in beats:
            if now - beat.at > self._timeout_s:
                return beat, f"gave no sign of life for {now - beat.at:.1f} s"
            pid, turns, since = self._turns.get(beat.rank, (0, -1, now))
            if (pid, turns) != (beat.pid, beat.turns):
                self._turns[beat.rank] = (beat.pid, beat.turns, now)
            elif now - since > self._timeout_s * STALL_FACTOR:
                return beat, f"made no step for {now - since:.1f} s"
        return None


class RankGroup:
    """The ranks of one spec. `changed` is told of every change of state."""

    def __init__(self, spec: RankSpec, heartbeat_timeout_s: float, changed: Callable[[], None]) -> None:
        self.spec = spec
        self.model: ModelInfo | None = None  # as of the last life that became ready
        self._run_dir = Path(spec.run_dir)
        self._pulse = Pulse(heartbeat_timeout_s, spec.heartbeat_s)
        self._changed = changed
        self._connection: Connection | None = None
        self._why_killed = ""
        self._group = Group(f"ranks of {spec.name}", self._specs, self._ready, self._on_change)

    @property
    def connection(self) -> Connection | None:
        """To rank 0; None while the group is not ready."""
        return self._connection if self._group.state == "ready" else None

    @property
    def state(self) -> str:
        """starting, ready, down or stopped."""
        return self._group.state

    @property
    def detail(self) -> str:
        """What ended the last life, while the group is not ready."""
        return "" if self.state == "ready" else (self._why_killed or self._group.detail)

    @property
    def restarts(self) -> int:
        return self._group.restarts

    def ranks(self) -> tuple[RankStatus, ...]:
        """The ranks that run now and what each holds."""
        alive = self._group.pids
        return tuple(
            RankStatus(beat.rank, beat.pid, beat.parameter_bytes, beat.parameter_bytes_total)
            for beat in self._beats()
            if beat.pid in alive
        )

    async def run(self) -> None:
        """Keeps the ranks running until cancelled, then stops them."""
        watch = asyncio.create_task(self._watch())
        try:
            await self._group.run()
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            if self._connection is not None:
                await self._connection.close()

    def _beats(self) -> tuple[Beat, ...]:
        beats = (read_beat(self._run_dir, rank) for rank in range(self.spec.ranks))
        return tuple(beat for beat in beats if beat is not None)

    def _specs(self) -> list[ChildSpec]:
        # A cleaner of temporary files may have taken the folder since the last start.
        self._run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.spec.socket.unlink(missing_ok=True)
        for rank in range(self.spec.ranks):
            beat_path(self._run_dir, rank).unlink(missing_ok=True)
        port = _free_port()
        return [
            ChildSpec(f"rank{rank}", (sys.executable, "-m", "cloud.rank"), rank_environment(self.spec, rank, port))
            for rank in range(self.spec.ranks)
        ]

    async def _ready(self) -> None:
        """Returns once every rank runs its loop and rank 0 answers. Raises TimeoutError."""
        async with asyncio.timeout(self.spec.start_timeout_s):
            while not self._all_ready():  # noqa: ASYNC110 - files and sockets of other processes
                await asyncio.sleep(0.05)
            await self._connect()

    def _all_ready(self) -> bool:
        beats = self._beats()
        return len(beats) == self.spec.ranks and all(b.state == "ready" for b in beats) and self.spec.socket.exists()

    async def _connect(self) -> None:
        previous, target = self._connection, f"unix:{self.spec.socket}"
        if previous is not None:
            await previous.close()
        inference, control = InferenceClient(target), EngineControlClient(target)
        while True:
            try:
                description = await inference.describe(Call(Deadline.after(self.spec.start_timeout_s)))
                break
            except WeirError as error:
                _log.info("rank 0 does not answer yet: %s", error.message)
                await asyncio.sleep(0.1)
        self.model = description.models[0]
        self._connection = Connection(inference, control, self.model)

    def _on_change(self, state: str, detail: str) -> None:
        _log.log(logging.WARNING if state == "down" else logging.INFO, "%s: %s %s", self._group.name, state, detail)
        if state == "ready":
            self._why_killed = ""
        self._changed()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.spec.heartbeat_s)
            beats = self._beats() if self.state == "ready" else ()
            found = self._pulse.hung(beats, time.monotonic())
            if found is None:
                continue
            beat, why = found
            if beat.pid in self._group.pids:
                self._why_killed = f"rank{beat.rank} {why}; the group was stopped"
                _log.error("%s", self._why_killed)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(beat.pid, signal.SIGKILL)


def _free_port() -> int:
    # Another process may take it before rank 0 does; then the group fails to start and tries another.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
