"""An EngineControl in memory, to stand beside a FakeInference as an engine host."""

from __future__ import annotations

from dataclasses import dataclass

from wire.engine import Activation, EngineStatus
from wire.errors import NotSupported, WeirError
from wire.service import Call


@dataclass
class FakeEngineControl:
    """Reports `active` of `slots`; `fail` is raised instead of an answer."""

    active: int = 0
    slots: int = 4
    fail: WeirError | None = None
    drained: bool = False

    async def activate(self, release_dir: str, precision: int, call: Call) -> Activation:
        raise NotSupported("a fake holds one model")

    async def status(self, call: Call) -> EngineStatus:
        if self.fail is not None:
            raise self.fail
        return EngineStatus("draining" if self.drained else "ready", active=self.active, slots=self.slots)

    async def drain(self, call: Call) -> int:
        self.drained = True
        return self.active
