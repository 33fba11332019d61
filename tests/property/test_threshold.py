"""Laws of the threshold by conformal risk control."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from quantize.fit import risk_threshold

cases = st.lists(st.tuples(st.floats(0, 0.999), st.booleans()), min_size=1, max_size=60)
alphas = st.floats(0.001, 0.999)


def risk(case: list[tuple[float, bool]], threshold: float) -> float:
    """(n R(t) + 1) / (n + 1), with R the share of all that is answered on the edge and disagrees."""
    wrong = sum(confidence >= threshold and not agreed for confidence, agreed in case)
    return (wrong + 1) / (len(case) + 1)


def chosen(case: list[tuple[float, bool]], alpha: float) -> float:
    return risk_threshold([c for c, _ in case], [a for _, a in case], alpha)


@given(cases, alphas)
def test_the_bound_holds_at_the_threshold_or_everything_escalates(case: list[tuple[float, bool]], alpha: float) -> None:
    threshold = chosen(case, alpha)
    assert risk(case, threshold) <= alpha + 1e-9 or all(confidence < threshold for confidence, _ in case)


@given(cases, alphas)
def test_no_smaller_threshold_would_do(case: list[tuple[float, bool]], alpha: float) -> None:
    threshold = chosen(case, alpha)
    if threshold > 0:
        assert risk(case, math.nextafter(threshold, -1)) > alpha - 1e-9


@given(cases, alphas, alphas)
def test_a_laxer_promise_never_escalates_more(case: list[tuple[float, bool]], one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert chosen(case, high) <= chosen(case, low)


@given(cases, alphas)
def test_one_more_disagreement_never_lowers_the_threshold(case: list[tuple[float, bool]], alpha: float) -> None:
    worse = [(confidence, agreed and index > 0) for index, (confidence, agreed) in enumerate(case)]
    assert chosen(worse, alpha) >= chosen(case, alpha)
