"""A measured program of `weir bench edge` in memory, whose work takes the times it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_FIRST, _SLIPPED = 50.0, 9.0


@dataclass
class FakeSide:
    """Satisfies bench.edge.side.Asked. Seconds; `steps_s`, `choose_s` and `argmax_s` by batch.

    It stands on a box that gets slower: the n-th time that something is asked for takes `drift`**n times as long, and
    the first time far longer still. One step in every three slips, too. So figures of different rounds, of the first
    round, or means are not those of `steps_s`.
    """

    steps_s: Mapping[int, float]
    prefill_s: float = 0.0
    choose_s: Mapping[int, float] = field(default_factory=dict)
    argmax_s: Mapping[int, float] = field(default_factory=dict)
    drift: float = 1.5

    asked: list[tuple[str, int]] = field(default_factory=list)  # what, and the batch; 0: without one

    def ask(self, do: str, *, batch: int = 0, tokens: int = 0, **given: Any) -> dict[str, Any]:
        times = self.asked.count((do, batch))
        self.asked.append((do, batch))
        slower = self.drift**times * (1.0 if times else _FIRST)
        if do == "prefill":
            return {"s": self.prefill_s * slower}
        found = {"step_s": self._each(self.steps_s[batch] * slower, tokens)}
        if do == "signals":
            found["choose_s"] = self._each(self.choose_s[batch] * slower, tokens)
            found["argmax_s"] = self._each(self.argmax_s[batch] * slower, tokens)
        return found

    @staticmethod
    def _each(seconds: float, count: int) -> list[float]:
        return [seconds * (_SLIPPED if number % 3 == 2 else 1.0) for number in range(count)]
