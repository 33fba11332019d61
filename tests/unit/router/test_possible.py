"""Each obstacle alone, and which one is told when several stand in the way."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from router.decision import LinkView, Reason, State, UpstreamView
from router.possible import (
    breaker_is_open,
    budget_is_spent,
    deadline_is_too_near,
    link_is_down,
    no_hops_left,
    no_upstream,
    not_portable,
    obstacle,
    upstream_just_failed,
    upstream_lacks_capability,
)
from tests.unit.router.cases import BEFORE, POLICY, REQUEST, STATE, UNSURE, case, with_upstream


def test_nothing_stands_in_the_way_of_an_ordinary_request() -> None:
    assert obstacle(case(UNSURE)) is None


def test_the_unknown_is_no_obstacle() -> None:
    assert obstacle(case(UNSURE, state=State(link=LinkView(), upstream=UpstreamView()))) is None


def test_words_of_the_edges_own_model_go_nowhere_and_that_is_told_first() -> None:
    ids = replace(REQUEST, portable=False)
    assert not_portable(case(request=ids)) is Reason.CAPABILITY
    assert obstacle(case(UNSURE, request=ids, state=with_upstream(configured=False))) is Reason.CAPABILITY


def test_a_failed_escalation_is_not_repeated() -> None:
    assert upstream_just_failed(case(replace(UNSURE, upstream_failed=True))) is Reason.UPSTREAM_ERROR


def test_a_node_without_upstream_is_offline() -> None:
    assert no_upstream(case(state=with_upstream(configured=False))) is Reason.OFFLINE


def test_an_open_breaker() -> None:
    assert breaker_is_open(case(state=with_upstream(admits=False))) is Reason.BREAKER_OPEN


def test_a_link_that_is_down() -> None:
    assert link_is_down(case(state=replace(STATE, link=LinkView(down=True)))) is Reason.OFFLINE
    assert link_is_down(case(state=replace(STATE, link=LinkView()))) is None


def test_hops_are_bounded() -> None:
    assert no_hops_left(case(state=with_upstream(hops_left=0))) is Reason.BUDGET


def test_an_upstream_that_lacks_what_is_needed() -> None:
    needy = replace(REQUEST, needs=frozenset({"vision"}))
    assert upstream_lacks_capability(case(request=needy)) is Reason.CAPABILITY
    assert upstream_lacks_capability(case(request=needy, state=with_upstream(capabilities=None))) is None


@pytest.mark.parametrize(("left", "spent"), [(None, False), (1.0, False), (0.9, True), (0.0, True), (math.nan, True)])
def test_a_budget_is_spent_when_no_whole_escalation_is_left(left: float | None, spent: bool) -> None:
    assert budget_is_spent(case(state=replace(STATE, budget_left=left))) is (Reason.BUDGET if spent else None)


def test_the_deadline_counts_link_payload_and_work() -> None:
    """0.05 + 4·0.01 s link, (600 + 20·8)/1e6 s payload, 0.2 + 19·0.02 s work, 0.2 s margin: 0.87 s."""
    assert deadline_is_too_near(case(replace(UNSURE, deadline_left_s=0.88))) is None
    assert deadline_is_too_near(case(replace(UNSURE, deadline_left_s=0.86))) is Reason.DEADLINE


def test_a_thin_link_makes_the_payload_count() -> None:
    thin = replace(STATE, link=LinkView(rtt_s=0.05, rtt_var_s=0.0, bytes_per_s=1000.0))
    big = replace(REQUEST, prompt_bytes=20_000)
    assert deadline_is_too_near(case(replace(UNSURE, deadline_left_s=10.0), big)) is None
    assert deadline_is_too_near(case(replace(UNSURE, deadline_left_s=10.0), big, thin)) is Reason.DEADLINE


def test_a_thin_link_makes_the_answer_count() -> None:
    thin = replace(STATE, link=LinkView(rtt_s=0.05, rtt_var_s=0.0, bytes_per_s=50.0))
    long_answer = replace(UNSURE, tokens=32, deadline_left_s=30.0)
    policy = replace(POLICY, request_overhead_bytes=0, draft_bytes_per_token=0.0)
    assert deadline_is_too_near(case(long_answer, policy=policy)) is None
    assert deadline_is_too_near(case(replace(long_answer, deadline_left_s=20.0), state=thin, policy=policy)) is (
        Reason.DEADLINE
    )


def test_the_edges_own_answer_tells_how_long_the_upstreams_will_be() -> None:
    talkative = replace(REQUEST, max_tokens=1000)
    expected = replace(talkative, expected_tokens=1000)
    assert deadline_is_too_near(case(replace(BEFORE, deadline_left_s=2.0), expected)) is Reason.DEADLINE
    assert deadline_is_too_near(case(replace(UNSURE, deadline_left_s=2.0), expected)) is None


def test_an_answer_of_unknown_length_is_not_taken_for_the_longest() -> None:
    """Else one slow sample, of a short answer, would keep a node from its idle upstream for ever."""
    talkative = replace(REQUEST, max_tokens=1000)
    slow = replace(STATE, upstream=replace(STATE.upstream, per_token_s=0.25))
    assert deadline_is_too_near(case(replace(BEFORE, deadline_left_s=2.0), talkative, slow)) is None
    assert deadline_is_too_near(case(replace(BEFORE, deadline_left_s=0.3), talkative, slow)) is Reason.DEADLINE


def test_with_nothing_known_the_margin_still_has_to_fit() -> None:
    unknown = State()
    assert deadline_is_too_near(case(replace(UNSURE, deadline_left_s=0.1), state=unknown)) is Reason.DEADLINE
    assert deadline_is_too_near(case(replace(UNSURE, deadline_left_s=math.nan), state=unknown)) is Reason.DEADLINE


def test_what_the_request_itself_met_is_told_first() -> None:
    everything = State(link=LinkView(down=True), upstream=UpstreamView(admits=False, hops_left=0), budget_left=0.0)
    assert obstacle(case(replace(UNSURE, upstream_failed=True), state=everything)) is Reason.UPSTREAM_ERROR
    assert obstacle(case(UNSURE, state=everything)) is Reason.BREAKER_OPEN
