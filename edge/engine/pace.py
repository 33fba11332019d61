"""How many prompt tokens a step may take beside decoding, so that running streams hardly notice a long prompt.

A step that also prefills is to take about `factor` times what a decode step took before prompts came: one share
for the streams, which grow meanwhile, the rest for prompts, and for those half of what the streams take at least.
What a prompt's token costs is learned from the chunks taken, as a line over the position it stands at, because
attention looks back over everything before it. Small chunks beside decoding and full ones without it are two
lines: the weights are read once per chunk, so a small chunk's token costs more.

Must not know: clocks, rows, sequences.
"""

from __future__ import annotations

_STEP_WEIGHT = 0.2  # of the newest decode step in what a step takes
_FORGETTING = 0.9
_SHARE, _SHARE_WEIGHT = (
    0.5,
    0.1,
)  # of what they may get that answers do get; the first guess, and the newest answer's say
_MOST_FACTOR, _LEAST = 1.5, 2  # beyond so many times its share of the step, the floor shrinks to this
# What tokens cost in small chunks before any was seen, against full chunks.
_SMALL_COSTS = 2.0


class Line:
    """y over x by least squares, the latest counting most. Never falls with x."""

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    @property
    def known(self) -> bool:
        return self._n > 0

    def add(self, x: float, y: float) -> None:
        keep = _FORGETTING
        self._n, self._x, self._y = keep * self._n + 1, keep * self._x + x, keep * self._y + y
        self._xx, self._xy = keep * self._xx + x * x, keep * self._xy + x * y

    def at(self, x: float) -> float:
        """Its height at `x`; not below a tenth of the mean, however far back `x` lies."""
        mean_x, mean_y = self._x / self._n, self._y / self._n
        spread = self._xx / self._n - mean_x**2
        slope = (self._xy / self._n - mean_x * mean_y) / spread if spread > 1.0 else 0.0
        return max(mean_y + max(slope, 0.0) * (x - mean_x), mean_y / 10)


class Pace:
    """What steps of one model took, and how large the next chunk may be."""

    def __init__(self, factor: float = 2.3, floor: int = 4) -> None:
        """At least `floor` tokens of some prompt are taken in every step; two, where that takes very long."""
        self._factor, self._floor = factor, floor
        self._step_s = self._calm_s = 0.0
        self._share = _SHARE
        self._small, self._full = Line(), Line()

    @property
    def step_s(self) -> float:
        """What a decode step takes of late; 0 before the first."""
        return self._step_s

    def decoded(self, seconds: float, *, beside: bool = False) -> None:
        """A decode step took that long; `beside`: while prompts were there to be prefilled."""
        self._step_s = self._step_s + _STEP_WEIGHT * (seconds - self._step_s) if self._step_s else seconds
        if not beside or not self._calm_s or self._step_s < self._calm_s:
            self._calm_s = self._step_s

    def joined(self) -> None:
        """One more sequence is decoded: that steps take longer is nothing its neighbours could be spared."""
        self._calm_s = self._step_s

    def prefilled(self, tokens: int, position: int, seconds: float, *, beside: bool) -> None:
        """A chunk that began at `position` took that long; `beside`: in a step that also decoded."""
        (self._small if beside else self._full).add(position + tokens / 2, seconds / tokens)

    def answered(self, produced: int, asked: int) -> None:
        """An answer ended with so many of the tokens it might have had."""
        self._share += _SHARE_WEIGHT * (produced / max(asked, 1) - self._share)

    def answer_s(self, asked: int) -> float:
        """What decoding an answer of at most `asked` tokens is expected to take, as others of late did."""
        return asked * self._share * self._step_s

    def token_s(self, position: int, *, beside: bool) -> float | None:
        """What a prompt's token at `position` costs; None when no chunk was seen yet."""
        line, other = (self._small, self._full) if beside else (self._full, self._small)
        if line.known:
            return line.at(position)
        if not other.known:
            return None
        return other.at(position) * (_SMALL_COSTS if beside else 1 / _SMALL_COSTS)

    def prompt_s(self, tokens: int) -> float:
        """What prefilling a prompt takes while nothing decodes, as far as is known."""
        cost = self.token_s(tokens // 2, beside=False)
        return tokens * cost if cost else 0.0

    def chunk(self, position: int, most: int, spent_s: float = 0.0) -> int:
        """Tokens that may be taken from `position` on in a step that decodes; 0 when it has spent its time.

        `spent_s` is what the step's other chunks took; the first chunk gets the floor at least.
        """
        first = spent_s == 0.0
        cost = self.token_s(position, beside=True)
        if not self._step_s or cost is None:
            return min(self._floor, most) if first else 0
        share = max(self._factor * self._calm_s - self._step_s, self._step_s / 2)
        fits = int((share - spent_s) / cost)
        if fits >= self._floor:
            return min(fits, most)
        if not first:
            return 0
        # Far into a prompt every pass looks back over all of it, however few tokens it takes.
        dear = self._floor * cost > _MOST_FACTOR * share
        return min(_LEAST if dear else self._floor, most)


def cut(left: int, wanted: int) -> int:
    """How many of a prompt's `left` tokens a chunk of about `wanted` takes.

    Never leaves, nor takes, a single one: its arithmetic is another one (docs/numerics.md), and a prompt's KV must
    not depend on the pace. At least 2 where there are 2, at most `wanted` where that is 3 or more.
    """
    if left <= wanted or left <= 2:
        return left
    taken = max(wanted, 2)
    if left - taken != 1:
        return taken
    return taken - 1 if taken > 2 else 3
