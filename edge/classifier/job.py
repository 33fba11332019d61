"""What the service hands to the batcher, and what comes back: texts that wait, and their logits.

A text's `answer` is the border of two threads: the batcher's posts an outcome, which `deliver` puts there in the event
loop.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from edge.engine.waiting import rank
from runtime.ort.classify import Encoded, Labels
from wire.deadline import Deadline
from wire.errors import WeirError


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """One loaded model as the batcher sees it. Two with equal `release` take each other's token ids."""

    labels: Labels
    release: str
    precision: int
    weight_digest: str


@dataclass(frozen=True, slots=True)
class Labelled:
    """One text's logits and what gave them. Times in ms: until its batch began, and the batch itself."""

    logits: tuple[float, ...]
    served: Served
    queue_ms: float
    run_ms: float


@dataclass(slots=True, eq=False)
class Waiting:
    """One text. `answer` is of the event loop; it is cancelled when the caller leaves."""

    served: Served
    row: Encoded
    deadline: Deadline
    answer: asyncio.Future[Labelled]
    priority: int = 0
    value: float | None = None
    since: float = field(default_factory=time.monotonic)
    rank: float = 0.0  # the smallest goes first

    def __post_init__(self) -> None:
        self.rank = rank(self.priority, self.value, self.since)


def deliver(answer: asyncio.Future[Labelled], outcome: Labelled | WeirError) -> None:
    """Once: a text that was answered already, or whose caller left, stays as it is."""
    if answer.done():
        return
    if isinstance(outcome, WeirError):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
