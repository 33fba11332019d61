"""A classification head fitted on labelled texts: logistic regression over an encoder's mean features.

Features are standardized for the fit, and the standardization is folded into the head, so that serving
knows nothing of it. A share of the texts, drawn per label from a seed, is held out of the fit; what the head
does on those is what is reported. Texts of a label that has one text only are all fitted.
"""

from __future__ import annotations

import random
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantize.errors import QuantizeError
from quantize.verdicts import LabelledText, several
from release.planes import Floats

HELD_OUT = 0.1
SEED = 0
_INVERSE_PENALTY = 0.1
_MOST_STEPS = 200
_MOST_LABELS = 4096


@dataclass(frozen=True, slots=True)
class Head:
    """weight float32 [L, H] and bias [L], in the order of `labels`."""

    labels: tuple[str, ...]
    weight: Floats
    bias: Floats

    def logits(self, features: Floats) -> Floats:
        return np.asarray(features @ self.weight.T + self.bias, np.float32)


def split(
    items: Sequence[LabelledText], seed: int = SEED, share: float = HELD_OUT
) -> tuple[tuple[LabelledText, ...], tuple[LabelledText, ...]]:
    """What is fitted on and what is held out, each in the order of `items`."""
    places: dict[str, list[int]] = defaultdict(list)
    for index, item in enumerate(items):
        places[item.label].append(index)
    chosen = random.Random(seed)
    held: set[int] = set()
    for label in sorted(places):
        found = places[label]
        count = min(max(round(len(found) * share), 1), len(found) - 1)
        held.update(chosen.sample(found, count))
    return (
        tuple(item for index, item in enumerate(items) if index not in held),
        tuple(item for index, item in enumerate(items) if index in held),
    )


def check(items: Sequence[LabelledText]) -> tuple[str, ...]:
    """The labels, sorted. Raises QuantizeError where no head can be fitted on them."""
    labels = tuple(sorted({label for item in items for label in _labels(item)}))
    least = 1 if several(items) else 2
    if not least <= len(labels) <= _MOST_LABELS:
        raise QuantizeError(
            f"the labelled texts have {len(labels)} labels: a classifier needs at least {least} and takes "
            f"{_MOST_LABELS}"
        )
    return labels


def _labels(item: LabelledText) -> tuple[str, ...]:
    return (item.label,) if item.labels is None else item.labels


def fit(features: Floats, items: Sequence[LabelledText], seed: int = SEED) -> Head:
    """Fits a head on `features` float32 [N, H] of `items`."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    labels = check(items)
    mean, spread = features.mean(0), features.std(0) + 1e-6
    if several(items):
        weight, bias = _one_by_one((features - mean) / spread, items, labels, seed)
        folded = (weight / spread).astype(np.float32)
        return Head(labels, folded, (bias - folded @ mean).astype(np.float32))
    numbers = {label: number for number, label in enumerate(labels)}
    wanted: NDArray[np.int64] = np.array([numbers[item.label] for item in items])
    model = LogisticRegression(C=_INVERSE_PENALTY, max_iter=_MOST_STEPS, random_state=seed)
    with warnings.catch_warnings():
        # Stopping a little early changes the head, not whether it is one: its figures are measured.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit((features - mean) / spread, wanted)
    weight, bias = np.asarray(model.coef_), np.asarray(model.intercept_)
    if len(labels) == 2:  # one logit for the second label, which is the same as two of half its size
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    folded = (weight / spread).astype(np.float32)
    return Head(labels, folded, (bias - folded @ mean).astype(np.float32))


def _one_by_one(
    standard: Floats, items: Sequence[LabelledText], labels: Sequence[str], seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A yes or no for every label, each fitted by itself; one that all texts have, or none, gets its share alone."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    weight, bias = np.zeros((len(labels), standard.shape[1])), np.zeros(len(labels))
    for index, label in enumerate(labels):
        held: NDArray[np.bool_] = np.array([label in _labels(item) for item in items])
        count = int(held.sum())
        if count in (0, len(items)):
            share = (count + 1) / (len(items) + 2)  # never a certainty
            bias[index] = np.log(share / (1 - share))
            continue
        model = LogisticRegression(C=_INVERSE_PENALTY, max_iter=_MOST_STEPS, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(standard, held)
        weight[index], bias[index] = model.coef_[0], model.intercept_[0]
    return weight, bias
