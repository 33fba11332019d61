"""Transfers in virtual time against hand-made sums."""

from __future__ import annotations

import pytest

from bench.transfer.simulate import Load, Way, ratio, simulate
from bench.transfer.traces import Trace

LINK = Trace("constant", (0.0,), (1e6,), 60.0)
SLOW = Trace("slow", (0.0,), (5e5,), 60.0)
NESTED, SEPARATE, EIGHT = Load(80_000_000, 70_000_000), Load(80_000_000, 148_000_000), Load(148_000_000, 0)


def test_the_first_part_has_the_link_and_the_rest_its_share() -> None:
    nested = simulate(LINK, Way.NESTED, NESTED, 0.5)
    assert (nested.first_answer_s, nested.eight_s) == pytest.approx((80.0, 80.0 + 140.0))
    assert nested.bytes == 150_000_000
    whole = simulate(LINK, Way.NESTED, NESTED, 1.0)
    assert whole.eight_s == pytest.approx(150.0)


def test_eight_alone_answers_when_all_of_it_is_here() -> None:
    eight = simulate(LINK, Way.EIGHT_ONLY, EIGHT, 0.5, ready_s=2.0)
    assert (eight.first_answer_s, eight.eight_s) == pytest.approx((150.0, 150.0))


def test_ratios_are_medians_over_traces() -> None:
    arrivals = [
        simulate(trace, way, load, 0.5)
        for trace in (LINK, SLOW)
        for way, load in ((Way.NESTED, NESTED), (Way.SEPARATE, SEPARATE), (Way.EIGHT_ONLY, EIGHT))
    ]
    assert ratio(arrivals, Way.NESTED, Way.EIGHT_ONLY, "first_answer_s") == pytest.approx(80 / 148)
    assert ratio(arrivals, Way.NESTED, Way.EIGHT_ONLY, "bytes") == pytest.approx(150 / 148)
    assert ratio(arrivals, Way.SEPARATE, Way.EIGHT_ONLY, "bytes") == pytest.approx(228 / 148)
