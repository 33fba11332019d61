"""Fits a confidence to labelled answers and chooses its threshold.

A logistic regression over the router's features, standardized and regularized. What it is worth is
judged on folds it was not fitted on: their confidences give AUROC, Brier score and the threshold.

The threshold is by conformal risk control (Angelopoulos, Bates, Fisch, Lei and Schuster, 2022): with
R(t) the share of *all* items that would be answered on the edge (confidence at least t) although the
cloud would have answered otherwise, it is the smallest t with (n R(t) + 1) / (n + 1) <= alpha. The
loss falls as t rises, so for items like the ones asked later the expected share stays within alpha.
The final regression sees all items while the threshold comes from the folds: the bound is close, not
exact, and it says nothing about other kinds of items.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from release.manifest import Calibration
from router.confidence import FEATURES, Signals, features

SEED = 0
_REGULARIZATION = 0.3
_MOST_FOLDS = 10
_NEVER = 1.0


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a calibration is for; see the manifest's Calibration."""

    release_name: str
    precision: int
    cpu_class: str
    commit_rule: str
    max_disagreement: float
    target: str = "cloud"


@dataclass(frozen=True, slots=True)
class Model:
    """A regression over standardized features."""

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    coefficients: NDArray[np.float64]
    intercept: float

    def of(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Confidences [n] of rows of features [n, features]."""
        z = ((values - self.mean) / self.scale) @ self.coefficients + self.intercept
        return 1 / (1 + np.exp(-np.clip(z, -500, 500)))


@dataclass(frozen=True, slots=True)
class Fitted:
    """A calibration, its regression, and every item's out-of-fold confidence with the fold and regression it is from.

    Item i was held out of `held_out[folds[i]]`.
    """

    calibration: Calibration
    confidences: tuple[float, ...]
    model: Model
    folds: tuple[int, ...]
    held_out: tuple[Model, ...]


def fit(purpose: Purpose, signals: Sequence[Signals], agreed: Sequence[bool]) -> Fitted:
    """Fits on `signals` with their labels. Works for any labels: where all are equal, confidence is constant."""
    return fit_values(purpose, FEATURES, [features(entry) for entry in signals], agreed)


def fit_values(
    purpose: Purpose, names: tuple[str, ...], values: Sequence[Sequence[float]], agreed: Sequence[bool]
) -> Fitted:
    """As `fit`, on the values of features of any names."""
    from sklearn.metrics import roc_auc_score

    inputs = np.array(values, np.float64)
    labels = np.array(agreed, bool)
    model = _model(inputs, labels)
    folds, models = _cross_fitted(inputs, labels)
    held_out = np.array([models[fold].of(inputs[i : i + 1])[0] for i, fold in enumerate(folds)])
    threshold = risk_threshold(held_out.tolist(), labels.tolist(), purpose.max_disagreement)
    content = {
        "precision": purpose.precision,
        "cpu_class": purpose.cpu_class,
        "commit_rule": purpose.commit_rule,
        "mean": tuple(map(float, model.mean)),
        "scale": tuple(map(float, model.scale)),
        "coefficients": tuple(map(float, model.coefficients)),
        "intercept": float(model.intercept),
        "threshold": threshold,
        "features": names,
        "n": len(labels),
        "n_agree": int(labels.sum()),
        "auroc": float(roc_auc_score(labels, held_out)) if 0 < labels.sum() < len(labels) else None,
        "max_disagreement": purpose.max_disagreement,
        "escalation_share": float((held_out < threshold).mean()),
        "brier": float(((held_out - labels) ** 2).mean()),
        "target": purpose.target,
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
    calibration = Calibration(id=f"{purpose.release_name}-{digest}", **content)  # type: ignore[arg-type]
    return Fitted(calibration, tuple(map(float, held_out)), model, folds, models)


def risk_threshold(confidences: Iterable[float], agreed: Sequence[bool], alpha: float) -> float:
    """The smallest t with (n R(t) + 1) / (n + 1) <= alpha; 1.0, which escalates all, where none is small enough."""
    n = len(agreed)
    allowed = math.floor(alpha * (n + 1) - 1 + 1e-9)  # how many disagreements may stay on the edge
    if allowed < 0:
        return _NEVER
    wrong = sorted((c for c, same in zip(confidences, agreed, strict=True) if not same), reverse=True)
    if len(wrong) <= allowed:
        return 0.0
    return min(math.nextafter(wrong[allowed], 2.0), _NEVER)


def _regression(standard: NDArray[np.float64], labels: NDArray[np.bool_]) -> tuple[NDArray[np.float64], float]:
    """Coefficients and intercept; a constant where the labels are all equal."""
    from sklearn.linear_model import LogisticRegression

    positive = int(labels.sum())
    if positive in (0, len(labels)):
        share = (positive + 1) / (len(labels) + 2)  # never a certainty from a few items
        return np.zeros(standard.shape[1]), math.log(share / (1 - share))
    model = LogisticRegression(C=_REGULARIZATION, max_iter=2000).fit(standard, labels)
    return model.coef_[0], float(model.intercept_[0])


def _model(inputs: NDArray[np.float64], labels: NDArray[np.bool_]) -> Model:
    mean, scale = inputs.mean(0), inputs.std(0)
    scale = np.where(scale > 1e-9, scale, 1.0)
    return Model(mean, scale, *_regression((inputs - mean) / scale, labels))


def _cross_fitted(inputs: NDArray[np.float64], labels: NDArray[np.bool_]) -> tuple[tuple[int, ...], tuple[Model, ...]]:
    """Every item's fold, and for every fold a regression fitted without it."""
    from sklearn.model_selection import StratifiedKFold

    count, width = inputs.shape
    rarer = int(min(labels.sum(), count - labels.sum()))
    if rarer < 2:
        share = (labels.sum() + 1) / (count + 2)  # never a certainty from a few items
        constant = Model(np.zeros(width), np.ones(width), np.zeros(width), math.log(share / (1 - share)))
        return (0,) * count, (constant,)
    folds = np.zeros(count, int)
    models = []
    splits = StratifiedKFold(min(_MOST_FOLDS, rarer), shuffle=True, random_state=SEED).split(inputs, labels)
    for number, (train, test) in enumerate(splits):
        folds[test] = number
        models.append(_model(inputs[train], labels[train]))
    return tuple(folds.tolist()), tuple(models)
