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
class Fitted:
    """A calibration and the out-of-fold confidence of every item it was fitted on."""

    calibration: Calibration
    confidences: tuple[float, ...]


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
    mean, scale = inputs.mean(0), inputs.std(0)
    scale = np.where(scale > 1e-9, scale, 1.0)
    coefficients, intercept = _regression((inputs - mean) / scale, labels)
    held_out = _out_of_fold(inputs, labels)
    threshold = risk_threshold(held_out.tolist(), labels.tolist(), purpose.max_disagreement)
    content = {
        "precision": purpose.precision,
        "cpu_class": purpose.cpu_class,
        "commit_rule": purpose.commit_rule,
        "mean": tuple(map(float, mean)),
        "scale": tuple(map(float, scale)),
        "coefficients": tuple(map(float, coefficients)),
        "intercept": float(intercept),
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
    return Fitted(calibration, tuple(map(float, held_out)))


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


def _out_of_fold(inputs: NDArray[np.float64], labels: NDArray[np.bool_]) -> NDArray[np.float64]:
    """For every item the confidence of a regression fitted without it."""
    from sklearn.model_selection import StratifiedKFold

    rarer = int(min(labels.sum(), len(labels) - labels.sum()))
    result = np.full(len(labels), (labels.sum() + 1) / (len(labels) + 2))
    if rarer < 2:
        return result
    folds = StratifiedKFold(min(_MOST_FOLDS, rarer), shuffle=True, random_state=SEED)
    for train, test in folds.split(inputs, labels):
        mean, scale = inputs[train].mean(0), inputs[train].std(0)
        scale = np.where(scale > 1e-9, scale, 1.0)
        coefficients, intercept = _regression((inputs[train] - mean) / scale, labels[train])
        z = ((inputs[test] - mean) / scale) @ coefficients + intercept
        result[test] = 1 / (1 + np.exp(-np.clip(z, -500, 500)))
    return result
