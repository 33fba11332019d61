"""Models in memory that an engine opens instead of releases on disk."""

from __future__ import annotations

import threading
from pathlib import Path

from edge.engine.candidate import Candidate
from edge.engine.config import EngineConfig
from edge.engine.job import Served
from edge.engine.model import Model
from runtime.tokenizer import Tokenizer
from tests.fakes.steps import FakeSteps
from wire.description import ModelInfo
from wire.errors import WeirError


class Shelf:
    """Satisfies edge.engine.model.Opener; `steps` are handed out in turn, one for every load.

    Loading waits for `gate` where there is one, then raises the next of `faults`, where one is left.
    """

    def __init__(self, tokenizer: Tokenizer, *steps: FakeSteps) -> None:
        self._tokenizer, self._steps = tokenizer, list(steps)
        self.gate: threading.Event | None = None
        self.faults: list[Exception] = []
        self.check_fault: WeirError | None = None
        self.here: tuple[int, ...] = (4,)
        self.needed_bytes = 1 << 20
        self.loaded: list[tuple[str, int]] = []

    def __call__(self, config: EngineConfig, directory: Path, precision: int, known: Tokenizer | None) -> Candidate:
        if self.check_fault is not None:
            raise self.check_fault
        return Candidate("m@1", precision, self.needed_bytes, lambda: self._load(directory, precision))

    def _load(self, directory: Path, precision: int) -> Model:
        if self.gate is not None:
            self.gate.wait(10)
        if self.faults:
            raise self.faults.pop(0)
        self.loaded.append((str(directory), precision))
        steps = self._steps.pop(0)
        served = Served(
            steps,
            self._tokenizer.decode,
            frozenset(),
            "m@1",
            precision,
            f"digest-{precision}",
            kv_bytes_per_token=steps.kv_bytes,
        )
        info = ModelInfo(
            "m",
            "m@1",
            precision=precision,
            weight_digest=served.weight_digest,
            context_length=steps.capacity,
            max_output_tokens=100,
        )
        return Model(directory, served, self._tokenizer, info, 1.0, lambda: self.here)
