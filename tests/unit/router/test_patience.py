"""How long an upstream may be silent, and when that is its fault."""

from __future__ import annotations

import math

import pytest

from router.patience import first_word_s, next_word_s, speaks_against


def test_a_known_upstream_has_a_quarter_an_unknown_one_half_and_a_node_three_quarters() -> None:
    assert first_word_s(28.0, 0.3, node=False) == 7.0
    assert first_word_s(28.0, None, node=False) == 14.0
    assert first_word_s(28.0, 0.3, node=True) == first_word_s(28.0, None, node=True) == 21.0


def test_one_that_is_always_slow_has_some_times_its_usual() -> None:
    assert first_word_s(28.0, 5.0, node=False) == 15.0
    assert first_word_s(28.0, 20.0, node=False) == 28.0


def test_a_hiccup_is_waited_out_even_of_a_short_time() -> None:
    assert first_word_s(2.0, 0.1, node=False) == 1.25
    assert next_word_s(1.5) == 1.25


@pytest.mark.parametrize("left", [-1.0, 0.0, 0.3, 1.0, 30.0, math.nan, math.inf])
@pytest.mark.parametrize("usual", [None, -1.0, 0.0, 0.5, 1e9, math.nan, math.inf])
def test_nobody_waits_longer_than_there_is_time(left: float, usual: float | None) -> None:
    most = left if 0 <= left < math.inf else 0.0
    for node in (False, True):
        assert 0 <= first_word_s(left, usual, node=node) <= most
    assert 0 <= next_word_s(left) <= most


@pytest.mark.parametrize("usual", [None, 0.1, 1.0, 10.0])
def test_more_time_is_never_less_patience(usual: float | None) -> None:
    waits = [first_word_s(left / 4, usual, node=False) for left in range(200)]
    assert waits == sorted(waits)


def test_what_comes_within_the_usual_is_never_given_up() -> None:
    for usual in (0.05, 0.5, 2.0, 9.0, 25.0):
        for left in (usual * 1.01, usual * 2, usual * 100):
            assert first_word_s(left, usual, node=False) >= usual


def test_a_short_silence_or_one_as_usual_is_no_fault() -> None:
    assert not speaks_against(0.9, None)
    assert speaks_against(1.0, None)
    assert not speaks_against(10.0, 8.0)
    assert speaks_against(12.0, 8.0)
