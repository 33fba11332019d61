"""Puts a release or precision in force in the engine, one at a time, and tells how it went."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from edge.events import Activated, ActivationFailed, Sink
from edge.ports import Clock
from edge.remembered import InForce
from wire.deadline import Deadline
from wire.description import ModelInfo
from wire.engine import Activation
from wire.errors import WeirError
from wire.service import Call, EngineControl

_ACTIVATE_S = 120.0

_log = logging.getLogger("weir.edge.activation")


class Activatable(Protocol):
    """Where the outcome is noted: edge.local.LocalState."""

    @property
    def served(self) -> ModelInfo | None: ...

    async def refresh(self) -> None: ...


class Activator:
    """The only one that switches an engine; loops that want a switch take turns here."""

    def __init__(
        self,
        engine: EngineControl,
        local: Activatable,
        sink: Sink,
        clock: Clock,
        remember: Callable[[InForce], None] = lambda _last: None,
    ) -> None:
        """`remember` is told what is in force now."""
        self._engine, self._local, self._sink, self._clock = engine, local, sink, clock
        self._remember = remember
        self._turn = asyncio.Lock()
        self.switches = 0

    async def put(self, directory: Path | None, release: str, precision: int, why: str) -> bool:
        """Puts `precision` of a release in force (directory None: of the one that is). Says whether it is."""
        return await self.attempt(directory, release, precision, why) is None

    async def attempt(self, directory: Path | None, release: str, precision: int, why: str) -> WeirError | None:
        """As `put`; what refused it, or None when it is in force."""
        async with self._turn:
            try:
                done = await self._engine.activate(
                    "" if directory is None else str(directory), precision, Call(Deadline.after(_ACTIVATE_S))
                )
            except WeirError as error:
                self._sink.emit(ActivationFailed(self._clock(), release, precision, why, error.message))
                return error
            try:
                self._remember(InForce(done.release, done.precision))
            except OSError as error:
                # A full disk must not end what answers: only a replaced engine would start with the release before.
                _log.warning("what is in force was not noted for a restart: %s", error)
            await self._local.refresh()
            self.switches += 1
            self._sink.emit(_activated(self._clock(), done, why))
            return None


def _activated(now: float, done: Activation, why: str) -> Activated:
    return Activated(now, done.release, done.precision, done.weight_digest, done.load_ms, why, done.pause_ms, done.note)
