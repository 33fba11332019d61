"""The arithmetic of `weir bench edge`: rounds, gaps, slopes, what came of a soak's requests."""

from __future__ import annotations

import random
import time

import pytest

from bench.edge.asking import Heard, chat
from bench.edge.node_parts import gaps_around
from bench.edge.rounds import interleaved, medians, ratio
from bench.edge.soak import Tally, client, slope_per_minute
from tests.fakes.inference import FakeInference
from wire.errors import Unavailable
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


_HEARS_OUT = 23  # a seed by which a client hears its first answer out, and soon asks again


async def _soaked(inference: FakeInference, for_s: float) -> Tally:
    tally, ends = Tally(), time.monotonic() + for_s
    await client(inference, [chat("a", 3)], ["one two three"], random.Random(_HEARS_OUT), ends, tally)
    return tally


async def test_a_soaks_client_hears_answers_out_or_leaves() -> None:
    inference = FakeInference()
    tally = await _soaked(inference, 0.1)
    assert tally.heard == inference.finished > 0 and tally.vanished == inference.left > 0
    assert (tally.failed, tally.wrong, tally.errors) == (0, 0, {})


async def test_a_request_that_failed_is_not_among_those_whose_client_left() -> None:
    tally = await _soaked(FakeInference(fail_before=Unavailable("gone")), 0.01)
    assert (tally.failed, tally.errors) == (1, {"Unavailable": 1})
    assert (tally.heard, tally.vanished, tally.wrong) == (0, 0, 0)


async def test_what_was_heard_of_a_failed_answer_is_compared_too() -> None:
    tally = await _soaked(FakeInference(words=("one", " owt", "!"), fail_after=(2, Unavailable("gone"))), 0.01)
    assert (tally.failed, tally.wrong, tally.vanished) == (1, 1, 0)
    assert tally.differing == ["'one owt' is not 'one two three'"]
