"""The arithmetic of `weir bench edge`: rounds, gaps, slopes."""

from __future__ import annotations

import pytest

from bench.edge.asking import Heard
from bench.edge.node_parts import gaps_around
from bench.edge.rounds import interleaved, medians, ratio
from bench.edge.soak import slope_per_minute
from wire.messages import Final, Tier, Usage


def test_rounds_are_interleaved_and_the_first_is_thrown_away() -> None:
    order: list[str] = []

    def way(name: str) -> float:
        order.append(name)
        return float(len(order))

    found = interleaved(2, {"a": lambda: way("a"), "b": lambda: way("b")})
    assert order == ["a", "b"] * 3
    assert found == {"a": [3.0, 5.0], "b": [4.0, 6.0]}


def test_a_ratio_is_the_median_within_rounds() -> None:
    figures = {"a": [1.0, 20.0, 3.0], "b": [1.0, 10.0, 1.0]}
    assert ratio(figures, "a", "b") == 2.0
    assert ratio(figures, "a", "c") is None
    assert medians(figures) == {"a": 3.0, "b": 1.0}


def _heard(*at: float) -> Heard:
    return Heard(0.0, 1.0, at, "", Final("stop", Usage(), Tier.EDGE))


def test_gaps_before_and_during_a_long_prompt() -> None:
    one = _heard(0.0, 1.0, 2.0, 6.0, 7.0, 20.0)
    assert gaps_around([one], came=2.5, ended=6.5) == (1.0, 4.0)
    # A gap that begins after the long prompt was read does not count.
    assert gaps_around([one, _heard(0.0, 2.0, 5.0)], came=2.5, ended=5.0) == (1.0, 4.0)


def test_streams_that_ended_too_early_are_no_figure() -> None:
    with pytest.raises(ValueError, match="had ended"):
        gaps_around([_heard(0.0, 1.0)], came=2.0, ended=3.0)


def test_the_slope_of_memory() -> None:
    assert slope_per_minute([(0.0, 0), (30.0, 1_000_000), (60.0, 2_000_000)]) == 2.0
    assert slope_per_minute([(0.0, 0), (30.0, 5)]) is None
