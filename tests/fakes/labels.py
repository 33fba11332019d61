"""A classifier in memory: its logits follow from the token ids alone, whatever shares the batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from runtime.ort.classify import Encoded, Rows
from runtime.ort.steps import ModelBroken


def expected(row: Encoded, labels: int = 3) -> list[float]:
    """What FakeLabels gives for a row."""
    return [float((sum(row.ids) * (label + 1) + len(row.ids)) % 97) for label in range(labels)]


@dataclass
class FakeLabels:
    """Satisfies runtime.ort.classify.Labels. A batch with the id `poison` fails; `broken` fails everything.

    A batch waits for `gate`, where there is one, and takes `step_s`.
    """

    labels: int = 3
    step_s: float = 0.0
    poison: int = -1
    nonsense: int = -1  # a row with this id gets no numbers
    broken: bool = False
    gate: threading.Event | None = None
    batches: list[list[int]] = field(default_factory=list)  # lengths

    def run(self, rows: Sequence[Encoded]) -> Rows:
        if self.gate is not None:
            self.gate.wait(5)
        time.sleep(self.step_s)
        if self.broken or any(self.poison in row.ids for row in rows):
            raise ModelBroken("out of its mind")
        self.batches.append([len(row) for row in rows])
        found = np.array([expected(row, self.labels) for row in rows], np.float32)
        for index, row in enumerate(rows):
            if self.nonsense in row.ids:
                found[index] = np.nan
        return found
