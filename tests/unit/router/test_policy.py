"""The whole decision: each urge, possible and impossible, at each moment."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from router.decision import Action, Decision, Observation, Reason, Request, State
from tests.unit.router.cases import (
    AFTER,
    BEFORE,
    POLICY,
    REQUEST,
    STATE,
    UNSURE,
    decided,
    during,
    with_edge,
    with_upstream,
)

BLOCKED = with_upstream(admits=False)
CLOUD_ONLY = replace(REQUEST, tier="cloud_only")
EDGE_ONLY = replace(REQUEST, tier="edge_only")
PRIVATE = replace(REQUEST, private=True)


def outcome(decision: Decision) -> tuple[Action, Reason, bool, Reason | None]:
    return decision.action, decision.reason, decision.degraded, decision.wanted_reason


def test_an_ordinary_request_runs_is_committed_and_answered() -> None:
    assert outcome(decided(BEFORE)) == (Action.RUN, Reason.CONFIDENT, False, None)
    assert outcome(decided(during(7, 0.9))) == (Action.CONTINUE, Reason.CONFIDENT, False, None)
    assert outcome(decided(during(8, 0.9))) == (Action.COMMIT, Reason.CONFIDENT, False, None)
    assert outcome(decided(AFTER)) == (Action.ANSWER, Reason.CONFIDENT, False, None)


def test_an_unsure_answer_escalates() -> None:
    assert outcome(decided(UNSURE)) == (Action.ESCALATE, Reason.LOW_CONFIDENCE, False, None)


def test_an_unsure_answer_that_cannot_escalate_is_degraded_and_says_why() -> None:
    assert outcome(decided(UNSURE, state=BLOCKED)) == (
        Action.ANSWER,
        Reason.BREAKER_OPEN,
        True,
        Reason.LOW_CONFIDENCE,
    )


def test_after_a_failed_escalation_the_edges_answer_is_degraded() -> None:
    assert outcome(decided(replace(UNSURE, upstream_failed=True))) == (
        Action.ANSWER,
        Reason.UPSTREAM_ERROR,
        True,
        Reason.LOW_CONFIDENCE,
    )


def test_a_confident_answer_is_not_degraded_by_an_upstream_that_is_away() -> None:
    assert outcome(decided(AFTER, state=BLOCKED)) == (Action.ANSWER, Reason.CONFIDENT, False, None)


@pytest.mark.parametrize(("request_", "reason"), [(EDGE_ONLY, Reason.EDGE_ONLY), (PRIVATE, Reason.PRIVACY)])
def test_what_must_stay_is_answered_here_whatever_the_confidence(request_: Request, reason: Reason) -> None:
    assert outcome(decided(BEFORE, request_)) == (Action.RUN, reason, False, None)
    assert outcome(decided(during(4, 0.0), request_)) == (Action.CONTINUE, reason, False, None)
    assert outcome(decided(during(8, 0.0), request_)) == (Action.COMMIT, reason, False, None)
    assert outcome(decided(UNSURE, request_)) == (Action.ANSWER, reason, False, None)


@pytest.mark.parametrize(("request_", "reason"), [(EDGE_ONLY, Reason.EDGE_ONLY), (PRIVATE, Reason.PRIVACY)])
def test_what_must_stay_is_refused_when_the_edge_cannot(request_: Request, reason: Reason) -> None:
    refused = (Action.REFUSE, reason, False, Reason.CAPABILITY)
    assert outcome(decided(replace(AFTER, edge_failed=True), request_)) == refused
    assert outcome(decided(BEFORE, request_, with_edge(available=False))) == refused
    assert outcome(decided(BEFORE, replace(request_, needs=frozenset({"vision"})))) == refused


def test_private_and_cloud_only_contradict_each_other() -> None:
    assert outcome(decided(BEFORE, replace(CLOUD_ONLY, private=True))) == (
        Action.REFUSE,
        Reason.PRIVACY,
        False,
        Reason.CLOUD_ONLY,
    )


def test_cloud_only_goes_up_or_is_refused_with_the_reason() -> None:
    assert outcome(decided(BEFORE, CLOUD_ONLY)) == (Action.ESCALATE, Reason.CLOUD_ONLY, False, None)
    assert outcome(decided(BEFORE, CLOUD_ONLY, BLOCKED)) == (
        Action.REFUSE,
        Reason.BREAKER_OPEN,
        False,
        Reason.CLOUD_ONLY,
    )
    spent = replace(STATE, budget_left=0.0)
    assert outcome(decided(BEFORE, CLOUD_ONLY, spent))[:2] == (Action.REFUSE, Reason.BUDGET)


@pytest.mark.parametrize("observation", [replace(AFTER, edge_failed=True), replace(during(3, 0.9), edge_failed=True)])
def test_a_failed_edge_escalates_or_refuses(observation: Observation) -> None:
    assert outcome(decided(observation)) == (Action.ESCALATE, Reason.CAPABILITY, False, None)
    assert outcome(decided(observation, state=BLOCKED)) == (
        Action.REFUSE,
        Reason.BREAKER_OPEN,
        False,
        Reason.CAPABILITY,
    )


def test_an_edge_that_is_down_is_routed_around_or_refused() -> None:
    assert outcome(decided(state=with_edge(available=False)))[:2] == (Action.ESCALATE, Reason.PRE_ROUTED)
    both = replace(BLOCKED, edge=replace(BLOCKED.edge, available=False))
    assert outcome(decided(state=both)) == (Action.REFUSE, Reason.BREAKER_OPEN, False, Reason.PRE_ROUTED)


def test_an_edge_that_is_too_slow_still_tries_when_nobody_else_can() -> None:
    slow = replace(BLOCKED, edge=replace(BLOCKED.edge, first_token_s=60.0))
    assert outcome(decided(state=slow)) == (Action.RUN, Reason.BREAKER_OPEN, True, Reason.PRE_ROUTED)


def test_a_wish_for_speed_is_forgotten_when_it_cannot_be_had() -> None:
    speedy = replace(POLICY, prefer_faster_upstream=True)
    slow = with_edge(per_token_s=1.0)
    assert outcome(decided(state=slow, policy=speedy))[:2] == (Action.ESCALATE, Reason.FASTER_UPSTREAM)
    spent = replace(slow, budget_left=0.0)
    assert outcome(decided(state=spent, policy=speedy)) == (Action.RUN, Reason.CONFIDENT, False, None)


class TestCommitPoint:
    def test_below_the_threshold_it_decodes_on_unseen(self) -> None:
        assert outcome(decided(during(8, 0.5))) == (Action.CONTINUE, Reason.LOW_CONFIDENCE, False, None)

    def test_it_is_looked_at_once(self) -> None:
        """A second look at a confidence calibrated for the first would commit more than was promised."""
        assert decided(during(9, 0.9, previous=8)).action is Action.CONTINUE

    def test_it_is_found_when_a_piece_carries_several_tokens(self) -> None:
        assert decided(during(10, 0.9, previous=6)).action is Action.COMMIT

    def test_a_caller_that_does_not_say_what_was_seen_gets_the_look(self) -> None:
        assert decided(during(10, 0.9, previous=0)).action is Action.COMMIT

    def test_a_stream_goes_on_degraded_when_nobody_else_can_answer(self) -> None:
        degraded = (Action.COMMIT, Reason.BREAKER_OPEN, True, Reason.LOW_CONFIDENCE)
        assert outcome(decided(during(8, 0.5), state=BLOCKED)) == degraded
        assert outcome(decided(during(8, 0.0), state=BLOCKED)) == degraded, "hopeless too"
        assert outcome(decided(during(15, 0.5), state=BLOCKED)) == degraded, "the upstream left meanwhile"

    def test_before_it_an_impossible_early_stop_changes_nothing(self) -> None:
        assert outcome(decided(during(5, 0.0), state=BLOCKED)) == (Action.CONTINUE, Reason.CONFIDENT, False, None)

    def test_a_hopeless_generation_escalates_before_and_after_it(self) -> None:
        assert outcome(decided(during(5, 0.01)))[:2] == (Action.ESCALATE, Reason.EARLY_STOP)
        assert outcome(decided(during(12, 0.01)))[:2] == (Action.ESCALATE, Reason.EARLY_STOP)

    def test_past_it_a_confident_answer_is_shown_as_soon_as_waiting_is_pointless(self) -> None:
        assert outcome(decided(during(12, 0.9), state=BLOCKED)) == (Action.COMMIT, Reason.CONFIDENT, False, None)

    def test_without_one_nothing_is_committed(self) -> None:
        at_the_end = replace(REQUEST, commit_prefix=None)
        assert decided(during(50, 1.0), at_the_end).action is Action.CONTINUE
        assert decided(during(50, 0.5), at_the_end, BLOCKED).action is Action.CONTINUE

    def test_a_prefix_of_zero_commits_only_what_is_confident(self) -> None:
        at_once = replace(REQUEST, commit_prefix=0)
        assert decided(during(0, None, previous=0), at_once).action is Action.CONTINUE
        assert decided(during(1, 0.9, previous=0), at_once).action is Action.COMMIT


class TestCommitted:
    def test_it_goes_on_to_the_end_for_the_reason_it_was_committed_for(self) -> None:
        commit = decided(during(8, 0.9))
        assert outcome(decided(replace(during(9, 0.0), committed=commit)))[:2] == (Action.CONTINUE, Reason.CONFIDENT)
        assert outcome(decided(replace(UNSURE, committed=commit))) == (Action.ANSWER, Reason.CONFIDENT, False, None)

    def test_it_stays_degraded_even_when_the_upstream_comes_back(self) -> None:
        commit = decided(during(8, 0.5), state=BLOCKED)
        assert outcome(decided(replace(AFTER, committed=commit))) == (
            Action.ANSWER,
            Reason.BREAKER_OPEN,
            True,
            Reason.LOW_CONFIDENCE,
        )

    def test_it_is_refused_when_the_edge_breaks_off(self) -> None:
        commit = decided(during(8, 0.9))
        broken = replace(during(9, 0.9), committed=commit, edge_failed=True)
        assert decided(broken).action is Action.REFUSE


class TestThreshold:
    def test_the_most_careful_has_the_say(self) -> None:
        assert decided(AFTER).threshold == 0.6
        assert decided(during(8, 0.9)).threshold == 0.7
        assert decided(AFTER, policy=replace(POLICY, directive_threshold=0.8)).threshold == 0.8
        assert decided(AFTER, policy=replace(POLICY, directive_threshold=0.2)).threshold == 0.6
        assert decided(AFTER, replace(REQUEST, max_risk=0.05)).threshold == pytest.approx(0.95)
        assert decided(AFTER, replace(REQUEST, max_risk=0.9)).threshold == 0.6
        assert decided(AFTER, replace(REQUEST, max_risk=0.9, value=2.0)).threshold == pytest.approx(0.8)

    def test_a_request_worth_twice_as_much_tolerates_half_the_risk(self) -> None:
        assert decided(AFTER, replace(REQUEST, value=2.0)).threshold == pytest.approx(0.8)
        assert decided(AFTER, replace(REQUEST, value=0.1)).threshold == 0.6, "value never lowers"

    @pytest.mark.parametrize("broken", [math.nan, math.inf])
    def test_a_broken_threshold_is_the_most_careful(self, broken: float) -> None:
        assert decided(AFTER, policy=replace(POLICY, threshold_end=broken)).threshold == 1.0

    def test_a_promise_of_no_risk_cannot_be_kept_by_a_guess(self) -> None:
        assert decided(replace(AFTER, confidence=0.999), replace(REQUEST, max_risk=0.0)).action is Action.ESCALATE


def test_a_decision_carries_the_figures_it_was_made_from() -> None:
    numbers = decided(UNSURE).numbers
    assert numbers["confidence"] == 0.3
    assert numbers["threshold"] == 0.6
    assert numbers["upstream_s"] == pytest.approx(0.05 + 4 * 0.01 + 760 / 1e6 + 0.2 + 19 * 0.02)
    assert numbers["upstream_s_complete"] == 1.0
    assert decided(replace(UNSURE, deadline_left_s=math.nan)).numbers["deadline_left_s"] == 0.0


def test_a_node_about_which_nothing_is_known_still_decides() -> None:
    assert decided(BEFORE, Request(), State()).action is Action.RUN
    assert decided(UNSURE, Request(), State()).action is Action.ESCALATE
