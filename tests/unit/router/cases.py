"""A request that nothing is wrong with, and ways to change one thing about it."""

from __future__ import annotations

from dataclasses import replace

from router.case import Case, make_case
from router.decision import (
    Decision,
    EdgeView,
    LinkView,
    Moment,
    Observation,
    Policy,
    Request,
    State,
    UpstreamView,
)
from router.policy import decide

REQUEST = Request(commit_prefix=8, max_tokens=32)
POLICY = Policy(threshold_end=0.6, threshold_prefix=0.7, stop_levels=(0.0, 0.0, 0.05, 0.05))
LINK = LinkView(rtt_s=0.05, rtt_var_s=0.01, bytes_per_s=1e6)
UPSTREAM = UpstreamView(capabilities=frozenset({"stream"}), first_token_s=0.2, per_token_s=0.02, hops_left=2)
EDGE = EdgeView(capabilities=frozenset({"stream"}), first_token_s=0.1, per_token_s=0.01)
STATE = State(link=LINK, upstream=UPSTREAM, edge=EDGE)

BEFORE = Observation(Moment.BEFORE)
AFTER = Observation(Moment.AFTER, confidence=0.9, tokens=20)
UNSURE = replace(AFTER, confidence=0.3)


def during(tokens: int, confidence: float | None, previous: int | None = None) -> Observation:
    return Observation(Moment.DURING, confidence, tokens, previous_tokens=tokens - 1 if previous is None else previous)


def with_upstream(**changes: object) -> State:
    return replace(STATE, upstream=replace(UPSTREAM, **changes))  # type: ignore[arg-type]


def with_edge(**changes: object) -> State:
    return replace(STATE, edge=replace(EDGE, **changes))  # type: ignore[arg-type]


def case(
    observation: Observation = BEFORE,
    request: Request = REQUEST,
    state: State = STATE,
    policy: Policy = POLICY,
) -> Case:
    return make_case(request, observation, state, policy, now=100.0, uniform=0.5)


def decided(
    observation: Observation = BEFORE,
    request: Request = REQUEST,
    state: State = STATE,
    policy: Policy = POLICY,
) -> Decision:
    return decide(request, observation, state, policy, 100.0, 0.5)
