"""Each rule alone: when it speaks, and when it holds its tongue."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace

import pytest

import router.possible
import router.wanted
from router.decision import EdgeView, Reason
from router.possible import OBSTACLES
from router.wanted import (
    WANTED,
    Urge,
    Wish,
    cloud_only_goes,
    edge_broke_off,
    edge_is_down,
    edge_lacks_capability,
    edge_misses_deadline,
    edge_only_stays,
    hopeless_so_far,
    private_stays,
    unsure_at_commit_point,
    unsure_at_end,
    upstream_is_faster,
)
from tests.unit.router.cases import AFTER, BEFORE, POLICY, REQUEST, STATE, UNSURE, case, during, with_edge


def test_a_request_without_peculiarities_has_no_wish() -> None:
    for observation in (BEFORE, during(3, 0.9), during(8, 0.9), AFTER):
        assert [rule(case(observation)) for rule in WANTED] == [None] * len(WANTED)


def test_private_stays() -> None:
    assert private_stays(case(request=replace(REQUEST, private=True))) == Wish(Urge.STAY, Reason.PRIVACY)


def test_edge_only_stays() -> None:
    assert edge_only_stays(case(request=replace(REQUEST, tier="edge_only"))) == Wish(Urge.STAY, Reason.EDGE_ONLY)


def test_cloud_only_goes() -> None:
    assert cloud_only_goes(case(request=replace(REQUEST, tier="cloud_only"))) == Wish(Urge.GO, Reason.CLOUD_ONLY)


def test_an_edge_that_broke_off_sends_the_request_up() -> None:
    assert edge_broke_off(case(replace(AFTER, edge_failed=True))) == Wish(Urge.GO, Reason.CAPABILITY)


def test_a_missing_capability_sends_the_request_up() -> None:
    assert edge_lacks_capability(case(request=replace(REQUEST, needs=frozenset({"vision"})))) == Wish(
        Urge.GO, Reason.CAPABILITY
    )
    assert edge_lacks_capability(case(request=replace(REQUEST, needs=frozenset({"stream"})))) is None


def test_an_edge_that_is_down_is_not_waited_for() -> None:
    down = with_edge(available=False)
    assert edge_is_down(case(state=down)) == Wish(Urge.GO, Reason.PRE_ROUTED)
    assert edge_is_down(case(AFTER, state=down)) is None, "an answer that is there needs no engine"


def test_an_edge_that_surely_misses_the_deadline() -> None:
    hurried = replace(BEFORE, deadline_left_s=0.5)
    slow = with_edge(first_token_s=0.6)
    assert edge_misses_deadline(case(hurried, state=slow)) == Wish(Urge.GO, Reason.PRE_ROUTED)
    long_answer = replace(REQUEST, expected_tokens=100, max_tokens=200)
    assert edge_misses_deadline(case(hurried, long_answer)) == Wish(Urge.GO, Reason.PRE_ROUTED)


def test_the_token_limit_alone_is_no_evidence_that_the_edge_misses_the_deadline() -> None:
    hurried = replace(BEFORE, deadline_left_s=0.5)
    assert edge_misses_deadline(case(hurried, replace(REQUEST, max_tokens=10_000))) is None


def test_a_faster_upstream_is_preferred_only_where_the_operator_says_so() -> None:
    slow = with_edge(per_token_s=1.0)
    assert upstream_is_faster(case(state=slow)) is None
    speedy = replace(POLICY, prefer_faster_upstream=True)
    assert upstream_is_faster(case(state=slow, policy=speedy)) == Wish(Urge.GO_IF_POSSIBLE, Reason.FASTER_UPSTREAM)
    assert upstream_is_faster(case(policy=speedy)) is None, "not faster by the factor"


def test_what_is_not_measured_is_not_called_faster() -> None:
    unmeasured = replace(STATE, edge=EdgeView(capabilities=frozenset({"stream"}), queue_s=100.0))
    assert upstream_is_faster(case(state=unmeasured, policy=replace(POLICY, prefer_faster_upstream=True))) is None


def test_a_hopeless_generation_is_given_up_early() -> None:
    assert hopeless_so_far(case(during(4, 0.01))) == Wish(Urge.GO_IF_POSSIBLE, Reason.EARLY_STOP)
    assert hopeless_so_far(case(during(3, 0.01))) is None, "no level for so few tokens"
    assert hopeless_so_far(case(during(4, 0.2))) is None
    assert hopeless_so_far(case(during(16, 0.01))) is None, "nor for so many"


def test_every_length_has_the_level_of_its_bucket() -> None:
    policy = replace(POLICY, stop_levels=(0.1, 0.2, 0.3))
    given_up = {
        tokens: max(c for c in (0.05, 0.15, 0.25, 0.35) if hopeless_so_far(case(during(tokens, c), policy=policy)))
        for tokens in (1, 2, 3, 4, 7)
    }
    assert given_up == {1: 0.05, 2: 0.15, 3: 0.15, 4: 0.25, 7: 0.25}


def test_without_levels_nothing_is_given_up() -> None:
    """As with a release that was calibrated before there were any."""
    policy = replace(POLICY, stop_levels=())
    assert hopeless_so_far(case(during(4, 0.0), policy=policy)) is None
    assert hopeless_so_far(case(during(4, math.nan), policy=policy)) is None


def test_no_confidence_yet_is_no_sign_but_an_invalid_one_is_hopeless() -> None:
    assert hopeless_so_far(case(during(4, None))) is None
    assert hopeless_so_far(case(during(4, math.nan))) == Wish(Urge.GO_IF_POSSIBLE, Reason.EARLY_STOP)


def test_early_stop_never_undercuts_the_threshold() -> None:
    assert hopeless_so_far(case(during(4, 0.01), policy=replace(POLICY, threshold_prefix=0.0))) is None


@pytest.mark.parametrize("confidence", [0.5, 0.69, None, math.nan, 1.5, -0.1])
def test_an_unsure_answer_is_not_shown_at_the_commit_point(confidence: float | None) -> None:
    assert unsure_at_commit_point(case(during(8, confidence))) == Wish(Urge.GO_WHEN_DONE, Reason.LOW_CONFIDENCE)
    assert unsure_at_commit_point(case(during(7, confidence))) is None


@pytest.mark.parametrize("confidence", [0.59, 0.0, None, math.nan, math.inf, 1.01, -1.0])
def test_an_unsure_answer_goes_up(confidence: float | None) -> None:
    assert unsure_at_end(case(replace(UNSURE, confidence=confidence))) == Wish(Urge.GO, Reason.LOW_CONFIDENCE)


def test_confidence_at_the_threshold_is_enough() -> None:
    assert unsure_at_end(case(replace(AFTER, confidence=0.6))) is None


@pytest.mark.parametrize(("module", "listed"), [(router.wanted, WANTED), (router.possible, OBSTACLES)])
def test_every_rule_is_listed_once_and_says_what_it_means(module: object, listed: tuple[object, ...]) -> None:
    written = {
        function
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and name != "obstacle"  # type: ignore[attr-defined]
    }
    assert set(listed) == written
    assert len(listed) == len(written)
    assert all(inspect.getdoc(function) for function in written)
