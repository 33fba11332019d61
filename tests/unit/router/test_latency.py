"""Latency estimates and forecasts."""

from __future__ import annotations

import math

import pytest

from router.decision import EdgeView, LinkView, UpstreamView
from router.latency import Forecast, LatencyEstimate, edge_forecast, upstream_forecast


def test_the_first_answer_sets_the_estimate_and_later_ones_move_it() -> None:
    estimate = LatencyEstimate().after(0.2, 1.2, 11)
    assert (estimate.first_token_s, estimate.per_token_s) == (0.2, pytest.approx(0.1))
    estimate = estimate.after(0.4, 2.4, 11)
    assert (estimate.first_token_s, estimate.per_token_s) == (pytest.approx(0.26), pytest.approx(0.13))


def test_one_token_tells_nothing_about_the_next() -> None:
    assert LatencyEstimate().after(0.2, 0.2, 1) == LatencyEstimate(0.2, None)


def test_a_pace_over_a_few_tokens_counts_by_their_share() -> None:
    known = LatencyEstimate(0.2, 0.1)
    moved = {tokens: known.after(0.2, 0.2 + (tokens - 1) * 1.1, tokens) for tokens in (2, 6, 11, 501)}
    per_token = {tokens: estimate.per_token_s for tokens, estimate in moved.items()}
    assert per_token == pytest.approx({2: 0.13, 6: 0.25, 11: 0.4, 501: 0.4})


def test_many_short_answers_are_believed_in_the_end() -> None:
    estimate = LatencyEstimate(0.2, 0.1)
    for _ in range(200):
        estimate = estimate.after(0.2, 0.7, 2)
    assert estimate.per_token_s == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(("first", "total", "tokens"), [(math.nan, 1.0, 5), (-1.0, 1.0, 5), (0.1, 1.0, 0)])
def test_impossible_samples_change_nothing(first: float, total: float, tokens: int) -> None:
    assert LatencyEstimate(1.0, 1.0).after(first, total, tokens) == LatencyEstimate(1.0, 1.0)


def test_an_impossible_total_leaves_the_pace_alone() -> None:
    assert LatencyEstimate(1.0, 1.0, weight=1.0).after(0.5, 0.1, 5) == LatencyEstimate(0.5, 1.0, weight=1.0)


def test_a_forecast_says_whether_it_is_whole() -> None:
    assert Forecast.of(1.0, 2.0) == Forecast(3.0, True)
    assert Forecast.of(1.0, None) == Forecast(1.0, False)


def test_the_edges_forecast_includes_its_queue() -> None:
    assert edge_forecast(EdgeView(first_token_s=0.1, per_token_s=0.01, queue_s=1.0), 11) == Forecast(
        pytest.approx(1.2), True
    )


def test_an_answer_streams_at_the_pace_of_the_slower_of_writing_and_carrying() -> None:
    upstream = UpstreamView(first_token_s=0.0, per_token_s=0.1)
    fast = upstream_forecast(LinkView(0.0, 0.0, 1e6), upstream, 0, 11, 40.0)
    thin = upstream_forecast(LinkView(0.0, 0.0, 100.0), upstream, 0, 11, 40.0)
    assert fast == Forecast(pytest.approx(1.0), True)
    assert thin == Forecast(pytest.approx(4.0), True)


def test_care_allows_for_variation() -> None:
    upstream = UpstreamView(first_token_s=0.0, per_token_s=0.0)
    link = LinkView(0.1, 0.05, 1e6)
    assert upstream_forecast(link, upstream, 0, 1, 0.0).seconds == pytest.approx(0.3)
    assert upstream_forecast(link, upstream, 0, 1, 0.0, careful=False).seconds == pytest.approx(0.1)


def test_a_rate_of_zero_is_a_broken_measurement() -> None:
    assert not upstream_forecast(LinkView(0.1, 0.0, 0.0), UpstreamView(), 100, 1, 0.0).complete


def test_a_link_slower_than_anything_still_gives_figures() -> None:
    crawling = upstream_forecast(
        LinkView(rtt_s=0.1, rtt_var_s=0.0, bytes_per_s=2.2e-313),
        UpstreamView(configured=True, first_token_s=0.2, per_token_s=0.01),
        1000,
        10,
        4.0,
    )
    assert math.isfinite(crawling.seconds)
    assert crawling.complete
