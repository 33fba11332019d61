"""Which token comes next, and how sure the model was: from one row of logits.

The signals are those of the unmodified distribution, whatever the sampling settings: a confidence
must not depend on the temperature a caller asks for. Logits that are not finite raise, because a
confidence made from them would be an invention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from runtime.ort.steps import Logits

# Candidates looked at before the whole vocabulary is sorted for top_p.
_FIRST_CANDIDATES = 256


class Choice(NamedTuple):
    """A chosen token. `logprob` is its own, `entropy` the step's, both in nats.

    `margin` is the difference of the log-probs of the two likeliest tokens.
    """

    token: int
    logprob: float
    entropy: float
    margin: float


class Constraint(Protocol):
    """Which tokens may come next in one answer. One thread uses it."""

    def mask(self) -> npt.NDArray[np.uint32] | None:
        """One bit per token id, lowest first, 1 where the token may come next; None where all may.

        The array is valid until the next call. End tokens are among the tokens.
        """
        ...

    def accept(self, token: int) -> bool:
        """Told of every chosen token. True when the answer is whole with it and nothing may follow."""
        ...


class NotFinite(ArithmeticError):
    """The model gave logits that are no numbers."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. temperature 0 is greedy; top_k 0 and top_p 1 are off."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None


class Sampler:
    """Chooses the tokens of one sequence. Equal seeds and logits give equal tokens."""

    def __init__(self, params: SamplingParams, vocab_size: int) -> None:
        self._params = params
        self._random = np.random.default_rng(params.seed) if params.temperature > 0 else None
        self._shifted = np.empty(vocab_size, np.float32)
        self._weights = np.empty(vocab_size, np.float32)

    def choose(self, logits: Logits) -> Choice:
        """The next token after `logits` [V], which stay as they are. Raises NotFinite."""
        shifted, weights = self._shifted, self._weights
        top = int(logits.argmax())
        peak = logits[top]
        if not np.isfinite(peak):
            raise NotFinite(f"the model's largest logit is {peak}")
        np.subtract(logits, peak, out=shifted)
        np.exp(shifted, out=weights)
        total = float(weights.sum())
        log_total = math.log(total)
        entropy = log_total - float(weights.dot(shifted)) / total
        if not math.isfinite(entropy):
            raise NotFinite(f"the entropy of the model's distribution is {entropy}")
        token = top if self._random is None else self._draw(shifted, self._random)
        logprob = float(shifted[token]) - log_total
        shifted[top] = -np.inf
        return Choice(token, logprob, max(entropy, 0.0), -float(shifted.max()))

    def _draw(self, shifted: Logits, random: np.random.Generator) -> int:
        params, scaled = self._params, shifted / np.float32(self._params.temperature)
        if params.top_p >= 1 and params.top_k == 0:
            return _drawn(scaled, random)
        ids = _candidates(scaled, params.top_k, params.top_p)
        return int(ids[_drawn(scaled[ids], random)])


def _drawn(scaled: Logits, random: np.random.Generator) -> int:
    """An index, drawn with weights exp(scaled)."""
    cumulated = np.exp(scaled).cumsum(dtype=np.float64)
    index = int(np.searchsorted(cumulated, random.random() * cumulated[-1], side="right"))
    return min(index, len(scaled) - 1)


def _candidates(scaled: Logits, top_k: int, top_p: float) -> npt.NDArray[np.intp]:
    """Ids of the tokens that may be drawn: the top_k likeliest, of these the fewest that hold top_p."""
    size = len(scaled)
    k = min(top_k, size) if top_k > 0 else size
    if top_p >= 1:
        return _likeliest(scaled, k)
    # With top_k the mass is that of the k likeliest.
    whole = scaled if k == size else scaled[_likeliest(scaled, k)]
    wanted = top_p * float(np.exp(whole).sum(dtype=np.float64))
    count = min(k, _FIRST_CANDIDATES)
    while True:
        ids = _likeliest(scaled, count)
        cumulated = np.exp(scaled[ids]).cumsum(dtype=np.float64)
        if cumulated[-1] >= wanted or count >= k:
            return ids[: int(np.searchsorted(cumulated, wanted, side="left")) + 1]
        count = min(k, count * 8)


def _likeliest(scaled: Logits, count: int) -> npt.NDArray[np.intp]:
    """Ids of the `count` largest, largest first; ties by id, so that equal seeds repeat."""
    ids = np.arange(len(scaled)) if count >= len(scaled) else np.argpartition(scaled, -count)[-count:]
    ids.sort()
    return ids[np.argsort(-scaled[ids], kind="stable")]
