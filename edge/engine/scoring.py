"""How likely continuations of one prompt are, pass by pass: which tokens go next, and what the logits said.

A continuation's first token is told by the prompt's own logits; every pass over some of its tokens tells the
tokens after them, and after the last one whether the text ends there. An end is only asked of a continuation
that another one goes on from ("no" and "not sure"): without it the shorter one could never lose. So most options
of a single token cost no pass at all.

No pass takes a single token, unless the continuation has but one to show: that would be computed otherwise
(docs/numerics.md), and a score must not depend on the pace.

Must not know: rows, models, what the scores are for.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from edge.engine.pace import cut
from runtime.ort.sampling import logprob_of
from runtime.ort.steps import Logits


class Scoring:
    """The state of one request. `prompted` comes first, then `next_chunk` and `took` in turn until `done`."""

    def __init__(self, continuations: Sequence[Sequence[int]], stop_ids: Collection[int]) -> None:
        self._all = [tuple(ids) for ids in continuations]
        self._stop_ids = sorted(stop_ids)
        self._logprobs: list[list[float]] = [[] for _ in self._all]
        self._ends = [0.0] * len(self._all)
        self._wants_end = [
            bool(stop_ids) and any(len(other) > len(ids) and other[: len(ids)] == ids for other in self._all)
            for ids in self._all
        ]
        self._index = self._at = self._taken = 0

    @property
    def done(self) -> bool:
        return self._index >= len(self._all)

    @property
    def left(self) -> tuple[tuple[int, ...], ...]:
        """The continuations that are not told yet."""
        return tuple(self._all[self._index :])

    @property
    def logprobs(self) -> tuple[tuple[float, ...], ...]:
        return tuple(map(tuple, self._logprobs))

    @property
    def ends(self) -> tuple[float, ...]:
        """The log-prob that the text ends after each continuation; 0 where that was not asked."""
        return tuple(self._ends)

    def prompted(self, logits: Logits) -> None:
        """The logits after the prompt. Raises NotFinite."""
        firsts = logprob_of(logits, [ids[0] for ids in self._all])
        for logprobs, first in zip(self._logprobs, firsts, strict=True):
            logprobs.append(first)
        self._skip_told()

    def next_chunk(self, most: int) -> tuple[tuple[int, ...], int]:
        """About `most` tokens of a continuation (see edge.engine.pace.cut), and where in it they begin."""
        ids = self._all[self._index]
        chunk = ids[self._at : self._at + cut(self._passes(self._index) - self._at, most)]
        self._taken = len(chunk)
        return chunk, self._at

    def took(self, logits: Logits) -> None:
        """The logits [n, V] after each token of the chunk. Raises NotFinite."""
        index, ids = self._index, self._all[self._index]
        for row in logits[: self._taken]:
            self._at += 1
            if self._at < len(ids):
                self._logprobs[index] += logprob_of(row, [ids[self._at]])
            else:
                ends = logprob_of(row, self._stop_ids)
                self._ends[index] = math.log(max(sum(map(math.exp, ends)), 1e-300))
        if self._at >= self._passes(index):
            self._index, self._at = index + 1, 0
            self._skip_told()

    def _passes(self, index: int) -> int:
        """How many of a continuation's tokens the model must be shown."""
        return len(self._all[index]) - (0 if self._wants_end[index] else 1)

    def _skip_told(self) -> None:
        while not self.done and not self._passes(self._index):
            self._index += 1
