"""How long an upstream may be silent, and when that is its fault."""

from __future__ import annotations

import math

import pytest

from router.patience import first_word_s, next_word_s, outlasts, speaks_against


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


def test_the_third_silence_in_a_row_counts_that_outlasted_the_usual() -> None:
    assert [speaks_against(9.8, 8.0, in_a_row) for in_a_row in (0, 1, 2, 3, 4)] == [False] * 3 + [True] * 2
    assert not speaks_against(7.9, 8.0, 9)
    assert not speaks_against(0.9, 0.1, 9)


@pytest.mark.parametrize("usual", [None, -1.0, 0.0, 0.5, 8.0, math.nan, math.inf])
def test_a_longer_silence_and_more_of_them_never_speak_less_against_it(usual: float | None) -> None:
    for in_a_row in range(5):
        told = [speaks_against(n / 4, usual, in_a_row) for n in range(60)]
        assert told == sorted(told)
        assert all(speaks_against(n / 4, usual, in_a_row + 1) for n in range(60) if told[n])


def test_a_silence_that_speaks_against_it_has_outlasted_the_usual() -> None:
    for usual in (None, 0.2, 1.0, 8.0):
        for silent in (0.5, 1.0, 5.0, 8.0, 12.0, 40.0):
            assert outlasts(silent, usual) or not speaks_against(silent, usual)
