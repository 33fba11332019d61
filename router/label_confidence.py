"""From a classifier's probabilities to a calibrated confidence that its answer is the one the cloud would give.

Where labels exclude each other the answer is the likeliest one: what tells is its log-prob, how far the second
lies behind, and the entropy. Where they do not, the answer is the set of labels that hold: what tells is the
decision that was made with the least certainty, and how uncertain all of them are together. The calibrator is a
logistic regression over these, fitted when a release is built, as for decoders (router.confidence).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LABEL_FEATURES = ("answer_logprob", "margin", "entropy", "log_tokens")
_LEAST = 1e-12
_MOST_MARGIN = 20.0


@dataclass(frozen=True, slots=True)
class LabelSignals:
    """What a classifier's probabilities tell of its answer. Nats; `margin` is a difference of log-probs or log-odds."""

    answer_logprob: float
    margin: float
    entropy: float
    tokens: int = 0


def of_one(probabilities: Sequence[float], tokens: int) -> LabelSignals:
    """Of labels that exclude each other; their probabilities in any order."""
    ranked = sorted(probabilities, reverse=True)
    first = _log(ranked[0]) if ranked else _log(0.0)
    second = _log(ranked[1]) if len(ranked) > 1 else _log(0.0)
    return LabelSignals(first, min(first - second, _MOST_MARGIN), _entropy(ranked), tokens)


def of_many(probabilities: Sequence[float], thresholds: Sequence[float], tokens: int) -> LabelSignals:
    """Of labels that do not: each holds from its own threshold on, in the same order."""
    decided = [_log(own if own >= least else 1 - own) for own, least in zip(probabilities, thresholds, strict=True)]
    apart = [abs(_odds(own) - _odds(least)) for own, least in zip(probabilities, thresholds, strict=True)]
    entropy = math.fsum(_entropy((own, 1 - own)) for own in probabilities)
    return LabelSignals(min(decided, default=0.0), min([*apart, _MOST_MARGIN]), entropy, tokens)


def label_features(signals: LabelSignals) -> tuple[float, ...]:
    """The calibrator's inputs, in the order of LABEL_FEATURES."""
    return signals.answer_logprob, signals.margin, signals.entropy, math.log1p(max(signals.tokens, 0))


def _log(probability: float) -> float:
    return math.log(max(probability, _LEAST))


def _odds(probability: float) -> float:
    return _log(probability) - _log(1 - probability)


def _entropy(probabilities: Sequence[float]) -> float:
    return -math.fsum(own * _log(own) for own in probabilities if own > 0)
