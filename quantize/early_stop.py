"""Fits when to give an answer up: levels of running confidence that few answers that end well ever fall under.

An answer ends well where it would have stayed on the edge: its confidence reaches the threshold at its end or, for a
commit rule with a prefix, at its commit point. While an answer is decoded its running confidence, by the calibrator of
the commit rule, is a score and no probability. Per bucket of token counts (router.early_stop) a logistic curve turns
the lowest score so far seen there into the chance of ending well; a bucket that few well-ended answers reached takes
the curve of the one before it, and one that nothing reached gives nothing up. One chance, lambda, is the bound for all
buckets, so that the rules are nested and an answer is given up under lambda exactly where its lowest chance is.

The guarantee is the one that thresholds have (quantize.fit): with n well-ended items, lambda is the largest with
(given up + 1) / (n + 1) <= epsilon, over chances told by regressions and curves that had not seen the item. So of the
answers that would end well, for items like the ones asked later, at most the share epsilon is given up: over all of
them, not for each length apart. It says nothing where fewer than 1/epsilon - 1 items end well: then there is no early
stop. The rule that is kept is fitted on all items; its lambda is lowered until it keeps the bound on them too.

Figures are of folds: curves and lambda come from the other folds' items.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantize.fit import Fitted, Model
from release.document import plain
from release.manifest import EarlyStop
from router.confidence import Signals, features
from router.early_stop import MOST_BUCKETS, bucket

MAX_FALSE_STOPS = 0.02
_SUPPORT = 10  # well-ended answers that a bucket's own curve needs
_NEVER = math.inf
_LEAST = 1e-9  # of a confidence, and of its distance from 1

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Looks:
    """The running confidences at which an answer is looked at, in order of its tokens, and how it ended."""

    confidences: tuple[float, ...]
    well: bool


@dataclass(frozen=True, slots=True)
class Curve:
    """The chance of ending well, from a running confidence: logistic in its logit, and rising."""

    slope: float
    intercept: float

    def chance(self, confidence: float) -> float:
        """As log-odds, which order like the chance."""
        return self.slope * _logit(confidence) + self.intercept

    def level(self, chance: float) -> float:
        """The confidence of that chance, a hair less so that it is not itself under it; 0 where it is next to 0."""
        share = _share((chance - self.intercept) / self.slope)
        return share * (1 - 1e-6) if share > 2 * _LEAST else 0.0


Curves = tuple[Curve | None, ...]


def with_early_stop(
    fitted: Fitted,
    end: Fitted,
    trajectories: Sequence[Sequence[Signals]],
    prefix: int | None = None,
    max_false_stops: float = MAX_FALSE_STOPS,
) -> Fitted:
    """`fitted` with an early stop, where its items support one. `end` judges answers that are not committed before."""
    values = [np.array([features(signals) for signals in each], np.float64) for each in trajectories]
    held_out = [
        _looks(one, fitted, fitted.held_out[mine], end, end.held_out[theirs], prefix)
        for one, mine, theirs in zip(values, fitted.folds, end.folds, strict=True)
    ]
    final = [_looks(one, fitted, fitted.model, end, end.model, prefix) for one in values]
    stop = fit_early_stop(held_out, final, fitted.folds, fitted.calibration.threshold, max_false_stops)
    if stop is None:
        return fitted
    name, _, digest = fitted.calibration.id.rpartition("-")
    told = hashlib.sha256(f"{digest} {json.dumps(plain(stop), sort_keys=True)}".encode()).hexdigest()[:12]
    calibration = dataclasses.replace(fitted.calibration, id=f"{name}-{told}", early_stop=stop)
    return dataclasses.replace(fitted, calibration=calibration)


def _looks(  # noqa: PLR0917  (two calibrations, each with the regression of this item)
    values: Floats, fitted: Fitted, model: Model, end: Fitted, end_model: Model, prefix: int | None
) -> Looks:
    """What a node would look at: all of an answer, or its first tokens where it is committed after them."""
    if not len(values):
        return Looks((), False)
    confidences = tuple(model.of(values).tolist())
    if prefix is not None and len(values) >= prefix and confidences[prefix - 1] >= fitted.calibration.threshold:
        return Looks(confidences[:prefix], True)
    return Looks(confidences, bool(end_model.of(values[-1:])[0] >= end.calibration.threshold))


def fit_early_stop(
    held_out: Sequence[Looks], final: Sequence[Looks], folds: Sequence[int], threshold: float, max_false_stops: float
) -> EarlyStop | None:
    """The rule, from looks by regressions that had not seen the item and by the final one. None without support.

    A running confidence of at least `threshold` never gives an answer up.
    """
    by_fold = {
        fold: fit_curves([looks for looks, its in zip(held_out, folds, strict=True) if its != fold])
        for fold in set(folds)
    }
    chances = [
        lowest_chance(by_fold[fold], looks, threshold)
        for looks, fold in zip(held_out, folds, strict=True)
        if looks.well
    ]
    bound = highest_bound(chances, max_false_stops)
    curves = fit_curves(held_out)
    kept = highest_bound([lowest_chance(curves, looks, threshold) for looks in final if looks.well], max_false_stops)
    if bound is None or kept is None:
        return None
    levels = levels_of(curves, min(bound, kept), threshold)
    if not any(levels):
        return None
    by_levels = {
        fold: _levels_without(fold, held_out, folds, curves, threshold, max_false_stops)
        for fold, curves in by_fold.items()
    }
    return EarlyStop(levels, max_false_stops, *_figures(held_out, [by_levels[fold] for fold in folds]))


def fit_curves(looks: Sequence[Looks]) -> Curves:
    """One curve per bucket that any answer reached; None where nothing can be told."""
    lowest: list[list[tuple[float, bool]]] = [[] for _ in range(MOST_BUCKETS)]
    for each in looks:
        for place, confidence in _lowest(each).items():
            lowest[place].append((confidence, each.well))
    curves: list[Curve | None] = []
    for seen in lowest:
        if not seen:
            break
        supported = sum(well for _, well in seen) >= _SUPPORT and not all(well for _, well in seen)
        own = _curve(seen) if supported else None
        curves.append(own or (curves[-1] if curves else None))
    return tuple(curves)


def lowest_chance(curves: Curves, looks: Looks, threshold: float) -> float:
    """The lowest chance an answer ever had, as log-odds; infinity where it was never in danger."""
    told = (
        curve.chance(confidence)
        for place, confidence in _lowest(looks).items()
        if confidence < threshold and place < len(curves) and (curve := curves[place]) is not None
    )
    return min(told, default=_NEVER)


def highest_bound(chances: Sequence[float], max_false_stops: float) -> float | None:
    """The largest lambda with (number under it + 1) / (n + 1) at most `max_false_stops`; None where there is none."""
    allowed = math.floor(max_false_stops * (len(chances) + 1) - 1 + 1e-9)  # how many may be under it
    if allowed < 0:
        return None
    return sorted(chances)[allowed] if allowed < len(chances) else _NEVER


def levels_of(curves: Curves, bound: float, threshold: float) -> tuple[float, ...]:
    """The levels per bucket that give up what has a chance under `bound`; never above the threshold."""
    return tuple(0.0 if curve is None else min(curve.level(bound), threshold) for curve in curves)


def _levels_without(  # noqa: PLR0917
    fold: int, looks: Sequence[Looks], folds: Sequence[int], curves: Curves, threshold: float, max_false_stops: float
) -> tuple[float, ...]:
    """The levels that the other folds' items alone give, with their curves."""
    others = [one for one, its in zip(looks, folds, strict=True) if its != fold and one.well]
    bound = highest_bound([lowest_chance(curves, one, threshold) for one in others], max_false_stops)
    return () if bound is None else levels_of(curves, bound, threshold)


def _figures(looks: Sequence[Looks], levels: Sequence[tuple[float, ...]]) -> tuple[int, int, int, int]:
    """Well-ended answers and how many of them were given up; tokens of the others and how many were saved.

    `levels` are for each answer those that were fitted without it.
    """
    well = stopped = tokens = saved = 0
    for one, its in zip(looks, levels, strict=True):
        given_up = stops_after(its, one.confidences)
        if one.well:
            well, stopped = well + 1, stopped + (given_up is not None)
        else:
            tokens += len(one.confidences)
            saved += 0 if given_up is None else len(one.confidences) - given_up
    return well, stopped, tokens, saved


def stops_after(levels: Sequence[float], confidences: Sequence[float]) -> int | None:
    """After how many tokens an answer is given up; None where it never is."""
    for tokens, confidence in enumerate(confidences, start=1):
        if bucket(tokens) < len(levels) and confidence < levels[bucket(tokens)]:
            return tokens
    return None


def _lowest(looks: Looks) -> dict[int, float]:
    """The lowest confidence in every bucket that was reached."""
    lowest: dict[int, float] = {}
    for tokens, confidence in enumerate(looks.confidences, start=1):
        place = bucket(tokens)
        lowest[place] = min(confidence, lowest.get(place, 1.0))
    return lowest


def _curve(seen: Sequence[tuple[float, bool]]) -> Curve | None:
    """A logistic regression over the logit of the confidence; None unless it rises."""
    from sklearn.linear_model import LogisticRegression

    inputs = np.array([[_logit(confidence)] for confidence, _ in seen])
    model = LogisticRegression(C=1.0).fit(inputs, [well for _, well in seen])
    slope = float(model.coef_[0][0])
    return Curve(slope, float(model.intercept_[0])) if slope > 1e-6 else None


def _logit(share: float) -> float:
    inside = min(max(share, _LEAST), 1 - _LEAST)
    return math.log(inside / (1 - inside))


def _share(logit: float) -> float:
    return 1 / (1 + math.exp(-max(min(logit, 500.0), -500.0)))
