"""The same transfers in virtual time: what a trace alone says, without sockets, processes or disks.

Three ways to bring a model to a node: one nested release, a 4-bit and then an 8-bit release of their own, or
an 8-bit release alone. Until something can serve the whole link is the transfer's; afterwards its share.
"""

from __future__ import annotations

import enum
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.transfer.traces import Trace


class Way(enum.StrEnum):
    """How a model comes to a node."""

    NESTED = "nested"  # 4-bit plane first, then the residual
    SEPARATE = "separate"  # a 4-bit release, then an 8-bit one of its own
    EIGHT_ONLY = "eight_only"


@dataclass(frozen=True, slots=True)
class Load:
    """Bytes until the first local answer, and those after it until the node has 8-bit."""

    first: int
    rest: int

    @property
    def total(self) -> int:
        return self.first + self.rest


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a node could first answer by itself, when it had 8-bit, and what it moved for that."""

    trace: str
    way: Way
    first_answer_s: float
    eight_s: float
    bytes: int


def simulate(trace: Trace, way: Way, load: Load, share: float, ready_s: float = 0.0) -> Arrival:
    """One transfer. `ready_s` passes from the last byte of the first part to the first answer."""
    first = trace.seconds_for(load.first)
    eight = first
    if load.rest:
        # A share of the link is the link for more bytes. It begins when the first part is here, not when it answers.
        eight += trace.seconds_for(load.rest / share, first)
    return Arrival(trace.name, way, first + ready_s, eight + ready_s, load.total)


def ratio(arrivals: Sequence[Arrival], way: Way, to: Way, figure: str) -> float:
    """The median, over the traces, of a figure of `way` divided by that of `to` on the same trace."""
    figures: dict[Way, Mapping[str, float]] = {
        each: {arrival.trace: getattr(arrival, figure) for arrival in arrivals if arrival.way is each}
        for each in (way, to)
    }
    return statistics.median(figures[way][trace] / figures[to][trace] for trace in figures[way])
