"""What the decode thread tells the event loop of itself: how long waits are expected to be, what memory is taken.

Invariants: the decode thread alone writes, between steps, each figure as a whole; the event loop reads when it is
asked. So a figure may be a step old, and two of them of different steps, but none is ever half one thing and half
another.

Must not know: locks, who waits, what may be claimed.
"""

from __future__ import annotations

from collections.abc import Sequence

from edge.engine.job import Served
from edge.engine.lanes import Lanes
from edge.engine.pace import Pace
from edge.engine.running import Running
from edge.engine.waiting import Turn, wait_s

_STEP_WEIGHT = 0.1  # of the newest step in what a step takes


class Figures:
    """All zero at first. `stepped`, `counted` and `weighed` are the decode thread's."""

    def __init__(self) -> None:
        self.decode_steps = 0  # since the start
        self.claimed_bytes = 0  # what the KV of those who hold rows may come to
        self.prefix_tokens = self.prefix_hit_tokens = 0  # kept now, and copied from what was kept since the start
        self.row_bytes = self.kept_bytes = 0
        self._forecast: tuple[list[Turn], Pace | None] = [], None  # who holds rows, and the pace in force
        self._step_s = 0.0  # of late
        self._tokens_left = 0

    @property
    def taken_bytes(self) -> int:
        """Memory of rows and kept prefixes, after the last step."""
        return self.row_bytes + self.kept_bytes

    def stepped(self, lanes: Lanes, decoded: int, took_s: float) -> None:
        """A step of all models ended, of which so many decoded."""
        if decoded:
            self.decode_steps += decoded
            self._step_s = took_s if not self._step_s else self._step_s + _STEP_WEIGHT * (took_s - self._step_s)
        self._tokens_left = lanes.tokens_left

    def counted(self, lanes: Lanes, current: Served) -> None:
        """Who holds rows has changed, or how long for."""
        self._forecast = lanes.turns, lanes.pace_of(current)
        self.claimed_bytes = lanes.claimed_bytes
        self.prefix_tokens, self.prefix_hit_tokens = lanes.prefix_tokens, lanes.prefix_hit_tokens

    def weighed(self, lanes: Lanes) -> None:
        """The memory that is taken has changed."""
        self.row_bytes, self.kept_bytes = lanes.row_bytes, lanes.kept_bytes

    def wait_s(self, newcomer: Running, ahead: Sequence[Running], slots: int, budget_bytes: int) -> float:
        """Seconds until the turn of a newcomer behind those `ahead`; 0 while nothing is known."""
        turns, pace = self._forecast
        if pace is None:
            return 0.0
        return wait_s(turns, [other.turn(pace) for other in ahead], slots, budget_bytes, newcomer.job.claim_bytes)

    def left_s(self, waiting_tokens: float) -> float:
        """Seconds until what runs has ended and then so many tokens more, one a step: rarely too few."""
        return (self._tokens_left + waiting_tokens) * self._step_s
