"""Interleaved rounds: every side once, then every side again, so that what the machine does hits all of them.

A ratio is the median of the ratios within single rounds, never of figures of different rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

Figures = Mapping[str, Sequence[float]]


def interleaved(
    rounds: int, ways: Mapping[str, Callable[[], float]], told: Callable[[], None] = lambda: None
) -> dict[str, list[float]]:
    """One figure of each way per round. A round before the first is thrown away: it warms up."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            figure = way()
            if number:
                found[name].append(figure)
        told()
    return found


def ratio(figures: Figures, over: str, under: str) -> float | None:
    """The median over rounds of `over` by `under`; None where one of them was not measured."""
    if over not in figures or under not in figures:
        return None
    pairs = zip(figures[over], figures[under], strict=True)
    return round(statistics.median(one / other for one, other in pairs), 3)


def medians(figures: Figures, digits: int = 2) -> dict[str, float]:
    """The median of each way over the rounds."""
    return {name: round(statistics.median(values), digits) for name, values in figures.items()}
