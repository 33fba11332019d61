"""How many prompt tokens a step may take beside decoding, so that running streams hardly notice a long prompt.

A step that also prefills is to take about `factor` times what a decode step took before prompts came: one share
for the streams, which grow meanwhile, the rest for prompts. Where that is too short for as many tokens as the floor it
may take a little longer, up to 80 ms in any case; where even two are too many the prompt is to wait for
streams to end (edge.engine.giving_way says how long).
A chunk costs what its tokens cost and what any pass costs, however few tokens it takes: the weights are read once, and
attention goes once through everything before it. Both are learned as lines over the position, the tokens' from full
chunks, the pass's from what small ones took beyond their tokens.

Must not know: clocks, rows, sequences.
"""

from __future__ import annotations

_STEP_WEIGHT = 0.2  # of the newest decode step in what a step takes
_FORGETTING = 0.9
_MOST_FACTOR, _FEWEST = 2.2, 2  # how long a step may become, and for how few tokens of a prompt
_UNNOTICED_S = 0.08  # of a step: text comes faster than it is read
_TRIES = 1000  # steps between them
_WHOLE = 16  # tokens of a chunk whose time is its tokens', and hardly its pass's
# Of the tokens they may get that answers do get: the first guess, and the say of the newest.
_SHARE, _SHARE_WEIGHT = 0.5, 0.1


class Line:
    """y over x by least squares, the latest counting most. Never falls with x.

    One thread may read while another adds: what is known changes as a whole.
    """

    def __init__(self) -> None:
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)  # of 1, x, y, xx, xy

    @property
    def known(self) -> bool:
        return self._sums[0] > 0

    def add(self, x: float, y: float) -> None:
        n, sum_x, sum_y, sum_xx, sum_xy = (_FORGETTING * value for value in self._sums)
        self._sums = (n + 1, sum_x + x, sum_y + y, sum_xx + x * x, sum_xy + x * y)

    def at(self, x: float) -> float:
        """Its height at `x`; not below a tenth of the mean, however far back `x` lies."""
        n, sum_x, sum_y, sum_xx, sum_xy = self._sums
        mean_x, mean_y = sum_x / n, sum_y / n
        spread = sum_xx / n - mean_x**2
        slope = (sum_xy / n - mean_x * mean_y) / spread if spread > 1.0 else 0.0
        return max(mean_y + max(slope, 0.0) * (x - mean_x), mean_y / 10)


class Pace:
    """What steps of one model took, and how large the next chunk may be."""

    def __init__(self, factor: float = 1.8, floor: int = 4) -> None:
        """`floor` tokens are the least that is worth a pass while there is time: fewer cost hardly less."""
        self._factor, self.floor = factor, floor
        self._step_s = self._calm_s = 0.0
        self._share, self._waited = _SHARE, 0
        self._passes, self._tokens = Line(), Line()

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
        if not beside:
            if tokens < _WHOLE and self._tokens.known:
                return  # a pass more than tokens
            self._tokens.add(position + tokens / 2, seconds / tokens)
            return
        if not self._tokens.known:
            self._passes.add(position, seconds)
            return
        most = seconds / tokens
        if most < self._tokens.at(position):  # no token costs more than its share of the whole chunk
            self._tokens.add(position, most)
        took = max(seconds - tokens * self._tokens.at(position), 0.0)
        if self._passes.known:
            # One that took very long is not believed whole: something else may have run, and a prompt that waits
            # for what it believes to be dear learns nothing better.
            expected = self._passes.at(position)
            took = min(took, expected + max(expected, self._step_s))
        self._passes.add(position, took)

    def answered(self, produced: int, asked: int) -> None:
        """An answer ended with so many of the tokens it might have had."""
        self._share += _SHARE_WEIGHT * (produced / max(asked, 1) - self._share)

    def answer_s(self, asked: int) -> float:
        """What decoding an answer of at most `asked` tokens is expected to take, as others of late did."""
        return asked * self._share * self._step_s

    def prompt_s(self, tokens: int) -> float:
        """What prefilling a prompt takes while nothing decodes, as far as is known."""
        return tokens * self._tokens.at(tokens // 2) if self._tokens.known else 0.0

    def creep_s(self, tokens: int, position: int) -> float:
        """What `tokens` more of a prompt up to `position` take in chunks of the floor's size, as far as is known."""
        if not self._tokens.known:
            return 0.0
        return tokens / self.floor * (self._step_s + self._pass_s(position) + self.floor * self._tokens.at(position))

    def chunk(self, position: int, most: int, spent_s: float = 0.0) -> int:
        """Tokens that may be taken from `position` on in a step that decodes; 0 when there is no time for them.

        `spent_s` is what the step's other chunks took.
        """
        first = spent_s == 0.0
        if not self._step_s or not self._tokens.known:
            return min(self.floor, most) if first else 0
        fits = self._fits(position, self._factor * self._calm_s - spent_s)
        if fits < self.floor:
            fits = self._least(position) if first else 0
        return min(fits, most)

    def _least(self, position: int) -> int:
        """Tokens where the usual time is too short for as many as the floor."""
        fits = self._fits(position, max(_MOST_FACTOR * self._calm_s, _UNNOTICED_S))
        if fits >= _FEWEST:
            return min(fits, self.floor)
        # It waits for streams to end. Now and then it tries: what passes cost may be known wrongly.
        self._waited = (self._waited + 1) % _TRIES
        return 0 if self._waited else _FEWEST

    def _fits(self, position: int, within_s: float) -> int:
        """Tokens whose pass fits beside decoding into a step of so long."""
        return int((within_s - self._step_s - self._pass_s(position)) / self._tokens.at(position))

    def _pass_s(self, position: int) -> float:
        return self._passes.at(position) if self._passes.known else 0.0


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
