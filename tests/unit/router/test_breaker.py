"""The breaker over a made-up clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.breaker import TRANSITIONS, Breaker, BreakerEvent, BreakerSettings, BreakerState

SETTINGS = BreakerSettings(max_consecutive=3, cooldown_s=2.0, max_cooldown_s=10.0, trial_timeout_s=5.0)


def tripped(now: float = 0.0, settings: BreakerSettings = SETTINGS) -> Breaker:
    breaker = Breaker(settings)
    for _ in range(settings.max_consecutive):
        breaker = breaker.started(now).failed(now)
    return breaker


def test_the_table_closes_by_recovery_alone() -> None:
    assert [pair for pair, state in TRANSITIONS.items() if state is BreakerState.CLOSED] == [
        (BreakerState.HALF_OPEN, BreakerEvent.RECOVERED)
    ]


def test_it_trips_on_failures_in_a_row() -> None:
    breaker = Breaker(SETTINGS).failed(1.0).failed(2.0)
    assert breaker.admits(2.0)
    breaker = breaker.failed(3.0)
    assert (breaker.state, breaker.since, breaker.admits(3.0)) == (BreakerState.OPEN, 3.0, False)


def test_a_success_between_failures_starts_the_count_anew() -> None:
    breaker = Breaker(SETTINGS).failed(1.0).failed(1.0).succeeded(1.0).failed(1.0).failed(1.0)
    assert breaker.state is BreakerState.CLOSED


def test_it_trips_on_a_share_of_failures_that_never_come_in_a_row() -> None:
    breaker = Breaker(replace(SETTINGS, min_results=10, max_failure_share=0.5))
    for _ in range(5):
        assert breaker.state is BreakerState.CLOSED
        breaker = breaker.succeeded(1.0).failed(1.0)
    assert breaker.state is BreakerState.OPEN


def test_the_window_is_bounded() -> None:
    breaker = Breaker(replace(SETTINGS, window=20, max_consecutive=1000, max_failure_share=1.0))
    for _ in range(1000):
        breaker = breaker.succeeded(1.0)
    assert len(breaker.recent) == 20


def test_when_the_cooldown_is_over_it_is_half_open_at_once() -> None:
    breaker = tripped()
    assert breaker.at(1.99).state is BreakerState.OPEN
    half = breaker.at(2.0)
    assert (half.state, half.since) == (BreakerState.HALF_OPEN, 2.0)
    assert breaker.admits(2.0), "asking needs no tick in between"


def test_half_open_admits_a_limited_number_of_trials() -> None:
    breaker = tripped(settings=replace(SETTINGS, trials=2)).started(2.0)
    assert breaker.admits(2.0)
    assert not breaker.started(2.0).admits(2.0)


def test_a_successful_trial_closes_it() -> None:
    closed = tripped().started(2.0).succeeded(2.5)
    assert (closed.state, closed.since, closed.trips, closed.recent) == (BreakerState.CLOSED, 2.5, 0, ())


def test_it_may_ask_for_several_successes() -> None:
    breaker = tripped(settings=replace(SETTINGS, successes_to_close=2)).started(2.0).succeeded(2.1)
    assert breaker.state is BreakerState.HALF_OPEN
    assert breaker.started(2.2).succeeded(2.3).state is BreakerState.CLOSED


def test_a_failed_trial_doubles_the_cooldown_up_to_its_bound() -> None:
    breaker, now, cooldowns = tripped(), 0.0, []
    for _ in range(5):
        cooldowns.append(breaker.cooled_at - now)
        now = breaker.cooled_at
        breaker = breaker.started(now).failed(now)
    assert cooldowns == [2.0, 4.0, 8.0, 10.0, 10.0]


def test_after_closing_the_cooldown_starts_small_again() -> None:
    breaker = tripped().started(2.0).failed(2.0).started(6.0).succeeded(6.0)
    for _ in range(3):
        breaker = breaker.failed(7.0)
    assert breaker.cooled_at == 9.0


def test_a_straggling_failure_prolongs_the_cooldown_and_never_shortens_it() -> None:
    breaker = tripped().started(2.0).failed(2.0)
    assert breaker.cooled_at == 6.0
    assert breaker.failed(3.0).cooled_at == 7.0
    assert tripped(now=10.0).failed(0.0).cooled_at == 12.0, "a late report of an early failure"


def test_a_straggling_success_does_not_close_it() -> None:
    assert tripped().succeeded(1.0).state is BreakerState.OPEN


def test_a_trial_that_tells_nothing_gives_its_place_back() -> None:
    breaker = tripped().started(2.0)
    assert not breaker.admits(2.1)
    freed = breaker.abandoned(2.2)
    assert (freed.state, freed.admits(2.2)) == (BreakerState.HALF_OPEN, True)


def test_a_trial_that_never_ends_does_not_hold_it_half_open_for_ever() -> None:
    breaker = tripped().started(2.0)
    assert not breaker.admits(6.9)
    assert breaker.admits(7.0)
    assert not breaker.started(7.0).admits(7.0), "the next one counts again"


@pytest.mark.parametrize(
    "bad",
    [
        {"max_consecutive": 0},
        {"trials": 0},
        {"cooldown_s": 0.0},
        {"cooldown_s": 20.0},
        {"cooldown_factor": 0.5},
        {"max_failure_share": 0.0},
        {"trial_timeout_s": 0.0},
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        replace(SETTINGS, **bad)  # type: ignore[arg-type]
