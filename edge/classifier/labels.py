"""From a text's logits to its labels: a distribution over them, or each with a probability of its own.

Labels that exclude each other share one probability (softmax), the likeliest is the text's. Where they do not, each
has its own (logistic), and those that reach their thresholds hold. Plain arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from release.manifest import Labelling
from wire.classification import LabelScore


def probabilities(logits: Sequence[float], labelling: Labelling) -> list[float]:
    """In the order of the logits, which are finite numbers."""
    if labelling.multi_label:
        return [_logistic(logit) for logit in logits]
    top = max(logits)
    weights = [math.exp(logit - top) for logit in logits]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def scored(
    labels: Sequence[str], logits: Sequence[float], labelling: Labelling
) -> tuple[tuple[LabelScore, ...], tuple[str, ...]]:
    """All labels, likeliest first, and those that hold: where they exclude each other, nobody asks (empty)."""
    found = probabilities(logits, labelling)
    order = sorted(range(len(labels)), key=lambda index: (-found[index], index))
    scores = tuple(LabelScore(labels[index], found[index]) for index in order)
    if not labelling.multi_label:
        return scores, ()
    return scores, tuple(labels[index] for index in order if found[index] >= labelling.threshold(index))


def _logistic(logit: float) -> float:
    if logit >= 0:
        return 1 / (1 + math.exp(-logit))
    weight = math.exp(logit)
    return weight / (1 + weight)
