"""Which token comes next, and how sure the model was: from one row of logits.

The signals and log-probs are those of the unmodified distribution, whatever the sampling settings and
whatever a constraint allows: a confidence must not depend on the temperature a caller asks for. Logits
that are not finite raise, because a confidence made from them would be an invention.

Settings act in this order: repetition penalty, presence and frequency penalty, bias, constraint,
temperature, top_k, top_p, min_p.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from runtime.ort.softmax import Softmax
from runtime.ort.steps import Logits


class Choice(NamedTuple):
    """A chosen token. `logprob` is its own, `entropy` the step's, both in nats.

    `margin` is the difference of the log-probs of the two likeliest tokens; `top` the likeliest tokens with
    their log-probs.
    """

    token: int
    logprob: float
    entropy: float
    margin: float
    top: tuple[tuple[int, float], ...] = ()


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


class ConstraintFailed(RuntimeError):
    """What an answer is held to cannot be computed any more, or allows no token at all; the message says why."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    @property
    def penalizes(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)


class Scratch:
    """What samplers of one thread write into, so that a greedy token allocates nothing of the vocabulary's length."""

    def __init__(self, vocab_size: int) -> None:
        self.shifted = np.empty(vocab_size, np.float32)
        self.softmax = Softmax(vocab_size)
        self.cumulated = np.empty(vocab_size, np.float64)


class Sampler:
    """Chooses the tokens of one sequence. Equal seeds and logits give equal tokens."""

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        prompt_ids: Sequence[int] = (),
        scratch: Scratch | None = None,
    ) -> None:
        """`prompt_ids` count as seen for the repetition penalty. `scratch` may be shared within a thread."""
        self._params, self._size = params, vocab_size
        # What float32 cannot tell from 0 is greedy as well.
        self._random = np.random.default_rng(params.seed) if np.float32(params.temperature) > 0 else None
        self._scratch = scratch or Scratch(vocab_size)
        biased = [(token, bias) for token, bias in params.logit_bias.items() if 0 <= token < vocab_size]
        self._biased = np.array([token for token, _ in biased], np.intp)
        self._bias = np.array([bias for _, bias in biased], np.float32)
        self._seen = _ids(prompt_ids) if params.repetition_penalty != 1.0 else _ids(())
        self._counts: dict[int, int] = {}

    def choose(
        self,
        logits: Logits,
        mask: npt.NDArray[np.uint32] | None = None,
        top: int = 0,
        probabilities: Logits | None = None,
    ) -> Choice:
        """The next token after `logits` [V], which stay as they are, among those that `mask` allows.

        `probabilities` are those of `logits`, where they are known; they are written into. Raises NotFinite,
        ConstraintFailed.
        """
        best = int(logits.argmax())
        peak = float(logits[best])
        if not math.isfinite(peak):
            raise NotFinite(f"the model's largest logit is {peak}")
        # Over a whole vocabulary every pass costs; these are the fewest.
        if probabilities is None:
            probabilities = self._scratch.softmax(logits)
        logprob = math.log(probabilities[best])
        entropy = peak - logprob - float(probabilities.dot(logits))
        if not math.isfinite(entropy):
            raise NotFinite(f"the entropy of the model's distribution is {entropy}")
        probabilities[best] = 0.0
        second = float(probabilities[probabilities.argmax()])  # not max(), whose code no cache holds here
        margin = logprob - math.log(second) if second > 0.0 else self._margin(logits, best, peak)
        likeliest = _top(self._shifted(logits, peak), -logprob, top) if top > 0 else ()
        token = self._pick(logits, best, peak, mask)
        if self._params.penalizes:
            self._counts[token] = self._counts.get(token, 0) + 1
        return Choice(token, float(logits[token]) - peak + logprob, max(entropy, 0.0), margin, likeliest)

    def _shifted(self, logits: Logits, peak: float) -> Logits:
        """Logits less their peak, in an array that may be overwritten."""
        return np.subtract(logits, np.float32(peak), out=self._scratch.shifted)

    def _margin(self, logits: Logits, best: int, peak: float) -> float:
        """Where the second likeliest token's probability is too small to be told."""
        shifted = self._shifted(logits, peak)
        shifted[best] = -np.inf
        return -float(shifted.max())

    def _pick(self, logits: Logits, best: int, peak: float, mask: npt.NDArray[np.uint32] | None) -> int:
        reshaped = self._params.penalizes or self._biased.size > 0
        greedy = self._random is None
        if greedy and not reshaped and (mask is None or _allows(mask, best)):
            return best
        scores = self._shifted(logits, peak)
        if reshaped:
            self._reshape(logits, scores)
        if mask is not None:
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[: self._size])
            if not len(allowed):
                raise ConstraintFailed("the constraint allows no token here")
            return int(allowed[self._among(scores[allowed])])
        return self._among(scores)

    def _among(self, scores: Logits) -> int:
        """An index into `scores`: the largest, or one drawn."""
        return int(scores.argmax()) if self._random is None else self._draw(scores, self._random)

    def _reshape(self, logits: Logits, scores: Logits) -> None:
        params = self._params
        repeated = self._seen
        if self._counts:
            ids = np.fromiter(self._counts, np.intp, len(self._counts))
            if params.presence_penalty or params.frequency_penalty:
                counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
                penalty = counts * params.frequency_penalty + params.presence_penalty
                scores[ids] -= penalty.astype(np.float32)
            repeated = np.union1d(repeated, ids)
        if params.repetition_penalty != 1.0 and len(repeated):
            # Of the raw logits, as their sign counts.
            raw = logits[repeated]
            factor = np.float32(params.repetition_penalty)
            scores[repeated] += np.where(raw > 0, raw / factor, raw * factor) - raw
        if self._biased.size:
            scores[self._biased] += self._bias

    def _draw(self, scores: Logits, random: np.random.Generator) -> int:
        """An index into `scores`, which are overwritten."""
        params = self._params
        np.subtract(scores, scores.max(), out=scores)
        np.divide(scores, np.float32(params.temperature), out=scores)
        weights = self._scratch.softmax(scores) if len(scores) == self._size else np.exp(scores)
        if params.top_p >= 1 and params.top_k == 0 and params.min_p <= 0:
            return self._drawn(weights, random)
        ids = _candidates(scores, weights, params.top_k, params.top_p)
        if params.min_p > 0:
            ids = ids[scores[ids] >= np.float32(math.log(params.min_p))]
        return int(ids[self._drawn(weights[ids], random)])

    def _drawn(self, weights: Logits, random: np.random.Generator) -> int:
        """An index, drawn by its share of `weights`."""
        cumulated = self._scratch.cumulated[: len(weights)]
        weights.cumsum(dtype=np.float64, out=cumulated)
        index = int(np.searchsorted(cumulated, random.random() * cumulated[-1], side="right"))
        return min(index, len(weights) - 1)


def logprob_of(logits: Logits, token_ids: Sequence[int]) -> list[float]:
    """Natural log-probs of these tokens after `logits` [V]. Raises NotFinite."""
    peak = logits.max()
    total = float(np.exp(logits - peak).sum())
    if not math.isfinite(total):
        raise NotFinite(f"the model's largest logit is {peak}")
    log_total = math.log(total)
    return [float(logits[token] - peak) - log_total for token in token_ids]


def _allows(mask: npt.NDArray[np.uint32], token: int) -> bool:
    # Models have more logits than their tokenizers have tokens, which a mask does not know of.
    return token >> 5 < len(mask) and bool(int(mask[token >> 5]) >> (token & 31) & 1)


def _top(shifted: Logits, log_total: float, count: int) -> tuple[tuple[int, float], ...]:
    return tuple((int(token), float(shifted[token]) - log_total) for token in _likeliest(shifted, count)[:count])


def _ids(token_ids: Sequence[int]) -> npt.NDArray[np.intp]:
    return np.unique(np.asarray(token_ids, np.intp))


def _candidates(scaled: Logits, weights: Logits, top_k: int, top_p: float) -> npt.NDArray[np.intp]:
    """Ids of the tokens that may be drawn: the top_k likeliest, of these the fewest that hold top_p."""
    size = len(scaled)
    k = min(top_k, size) if top_k > 0 else size
    if k < size:
        ids = _likeliest(scaled, k)
    elif top_p >= 1:
        return np.arange(size)
    else:
        # All that are lighter than this hold less than 1 - top_p together, so what is looked for lies above.
        ids = _sorted(scaled, np.flatnonzero(weights >= (1 - top_p) * float(weights.sum(dtype=np.float64)) / size))
    if top_p >= 1:
        return ids
    # With top_k the mass is that of the k likeliest.
    chosen = weights[ids] if k < size else weights
    wanted = top_p * float(chosen.sum(dtype=np.float64))
    cumulated = weights[ids].cumsum(dtype=np.float64)
    return ids[: int(np.searchsorted(cumulated, wanted, side="left")) + 1]


def _likeliest(scaled: Logits, count: int) -> npt.NDArray[np.intp]:
    """Ids of the `count` largest, largest first."""
    ids = np.arange(len(scaled)) if count >= len(scaled) else np.argpartition(scaled, -count)[-count:]
    ids.sort()
    return _sorted(scaled, ids)


def _sorted(scaled: Logits, ids: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """`ids`, which rise, by what stands there, largest first; ties by id, so that equal seeds repeat."""
    return ids[np.argsort(-scaled[ids], kind="stable")]
