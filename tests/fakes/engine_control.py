"""An engine that can be switched: Inference by a FakeInference, control in memory, failures on order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from release.listing import read_manifest
from tests.fakes.inference import FakeInference
from wire.engine import Activation, EngineStatus
from wire.errors import WeirError
from wire.service import Call


@dataclass
class FakeControl:
    """Satisfies EngineControl over `inference`, whose described model it changes."""

    inference: FakeInference
    fail: WeirError | None = None
    asked: list[tuple[str, int]] = field(default_factory=list)

    async def activate(self, release_dir: str, precision: int, call: Call) -> Activation:
        self.asked.append((release_dir, precision))
        if self.fail is not None:
            raise self.fail
        model = self.inference.model
        release = read_manifest(Path(release_dir)).id if release_dir else model.release
        digest = f"{release}/{precision}"
        self.inference.model = replace(model, release=release, precision=precision, weight_digest=digest)
        return Activation(release, precision, digest, 1.0)

    async def status(self, call: Call) -> EngineStatus:
        return EngineStatus("ready")

    async def drain(self, call: Call) -> int:
        return 0
