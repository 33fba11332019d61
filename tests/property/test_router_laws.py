"""Laws of the router, over inputs that include the impossible. Each docstring is the law."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from router.breaker import Breaker, BreakerSettings, BreakerState
from router.case import make_case, told_tokens
from router.decision import (
    Action,
    Decision,
    EdgeView,
    LinkView,
    Moment,
    Observation,
    Policy,
    Reason,
    Request,
    State,
    UpstreamView,
)
from router.network import NetworkEstimate
from router.policy import decide, nothing_to_decide
from router.precision import PrecisionFigures, PrecisionPlan, PrecisionSettings, Surroundings, plan_precision

ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True)
SHARE = st.floats(0, 1)
SECONDS = st.floats(0, 100)
MAYBE_SECONDS = st.none() | SECONDS | ANY_FLOAT
MAYBE_SHARE = st.none() | SHARE | ANY_FLOAT
COUNT = st.integers(-5, 400) | st.integers(-(10**400), 10**400)
CAPABILITIES = st.frozensets(st.sampled_from(["stream", "vision", "json"]), max_size=2)

REQUESTS = st.builds(
    Request,
    tier=st.sampled_from(["auto", "auto", "edge_only", "cloud_only", "no such word"]),
    private=st.sampled_from([False, False, True]),
    needs=st.just(frozenset()) | CAPABILITIES,
    max_risk=MAYBE_SHARE,
    value=st.just(1.0) | st.floats(0, 100) | ANY_FLOAT,
    commit_prefix=st.none() | st.integers(-1, 20),
    max_tokens=COUNT,
    prompt_bytes=COUNT,
    expected_tokens=st.none() | COUNT,
    portable=st.sampled_from([True, True, True, False]),
)
OBSERVATIONS = st.builds(
    Observation,
    moment=st.sampled_from(Moment),
    confidence=MAYBE_SHARE,
    tokens=st.integers(0, 30) | COUNT,
    edge_failed=st.sampled_from([False, False, False, True]),
    upstream_failed=st.sampled_from([False, False, False, True]),
    deadline_left_s=st.floats(-1, 60) | ANY_FLOAT,
    previous_tokens=st.integers(0, 30),
)
LINKS = st.builds(
    LinkView,
    rtt_s=MAYBE_SECONDS,
    rtt_var_s=MAYBE_SECONDS,
    bytes_per_s=st.none() | st.floats(1, 1e9) | ANY_FLOAT,
    down=st.sampled_from([False, False, False, True]),
)
UPSTREAMS = st.builds(
    UpstreamView,
    configured=st.sampled_from([True, True, True, False]),
    admits=st.sampled_from([True, True, True, False]),
    capabilities=st.none() | CAPABILITIES,
    first_token_s=MAYBE_SECONDS,
    per_token_s=MAYBE_SECONDS,
    hops_left=st.integers(-1, 3),
)
EDGES = st.builds(
    EdgeView,
    available=st.sampled_from([True, True, True, False]),
    capabilities=CAPABILITIES,
    first_token_s=MAYBE_SECONDS,
    per_token_s=MAYBE_SECONDS,
    queue_s=SECONDS | ANY_FLOAT,
)
STATES = st.builds(
    State, link=LINKS, upstream=UPSTREAMS, edge=EDGES, budget_left=st.none() | st.floats(-1, 5) | ANY_FLOAT
)
POLICIES = st.builds(
    Policy,
    threshold_end=SHARE | ANY_FLOAT,
    threshold_prefix=SHARE | ANY_FLOAT,
    directive_threshold=MAYBE_SHARE,
    value_weight=SHARE | ANY_FLOAT,
    stop_levels=st.lists(SHARE | ANY_FLOAT, max_size=6).map(tuple),
    prefer_faster_upstream=st.booleans(),
    faster_upstream_factor=SHARE | ANY_FLOAT,
    deadline_margin_s=st.floats(0, 1) | ANY_FLOAT,
    request_overhead_bytes=COUNT,
    draft_bytes_per_token=ANY_FLOAT,
    answer_bytes_per_token=ANY_FLOAT,
)


@dataclass(frozen=True)
class Scene:
    """Everything a decision looks at."""

    request: Request
    observation: Observation
    state: State
    policy: Policy

    def decide(self, now: float = 0.0, uniform: float = 0.5) -> Decision:
        return decide(self.request, self.observation, self.state, self.policy, now, uniform)

    @property
    def escalates(self) -> bool:
        return self.decide().action is Action.ESCALATE

    def asked(self, **changes: object) -> Scene:
        return replace(self, request=replace(self.request, **changes))  # type: ignore[arg-type]

    def seen(self, **changes: object) -> Scene:
        return replace(self, observation=replace(self.observation, **changes))  # type: ignore[arg-type]

    def known(self, **changes: object) -> Scene:
        return replace(self, state=replace(self.state, **changes))  # type: ignore[arg-type]

    def ruled(self, **changes: object) -> Scene:
        return replace(self, policy=replace(self.policy, **changes))  # type: ignore[arg-type]


WILD = st.builds(Scene, REQUESTS, OBSERVATIONS, STATES, POLICIES)
# Impossible inputs rarely escalate, and a law about escalations says nothing where there are none: so
# most scenes are of the kind that a node meets.
USUAL = st.builds(
    Scene,
    st.builds(
        Request,
        max_risk=st.none() | SHARE,
        value=st.just(1.0) | st.floats(0, 20),
        commit_prefix=st.none() | st.integers(1, 12),
        max_tokens=st.integers(1, 64),
        prompt_bytes=st.integers(0, 5000),
    ),
    st.builds(
        Observation,
        moment=st.sampled_from([Moment.AFTER, Moment.DURING, Moment.AFTER, Moment.BEFORE]),
        confidence=SHARE | st.floats(0, 0.06),
        tokens=st.integers(1, 16),
        deadline_left_s=st.floats(0, 30),
        previous_tokens=st.integers(0, 16),
    ),
    st.builds(
        State,
        link=st.builds(LinkView, st.none() | st.floats(0, 0.5), st.floats(0, 0.2), st.none() | st.floats(500, 1e7)),
        upstream=st.builds(UpstreamView, first_token_s=st.floats(0, 3), per_token_s=st.none() | st.floats(0, 0.2)),
        edge=st.builds(EdgeView, first_token_s=st.floats(0, 3), per_token_s=st.none() | st.floats(0, 0.3)),
        budget_left=st.none() | st.floats(0, 5),
    ),
    st.builds(
        Policy,
        threshold_end=SHARE,
        threshold_prefix=SHARE,
        directive_threshold=st.none() | SHARE,
        stop_levels=st.lists(SHARE, max_size=5).map(tuple),
        prefer_faster_upstream=st.booleans(),
    ),
)
SCENES = USUAL | USUAL | WILD
ALLOWED = {
    Moment.BEFORE: {Action.RUN, Action.ESCALATE, Action.REFUSE},
    Moment.DURING: {Action.CONTINUE, Action.COMMIT, Action.ESCALATE, Action.REFUSE},
    Moment.AFTER: {Action.ANSWER, Action.ESCALATE, Action.REFUSE},
}


@given(SCENES, ANY_FLOAT, ANY_FLOAT)
def test_total_and_deterministic(scene: Scene, now: float, uniform: float) -> None:
    """decide never raises, equal inputs give equal decisions, and an action fits its moment.

    A degraded decision names what was wanted and what stood in the way; its figures are numbers.
    """
    decision = scene.decide(now, uniform)
    assert decision == scene.decide(now, uniform)
    assert decision.action in ALLOWED[scene.observation.moment]
    assert isinstance(decision.reason, Reason)
    assert not decision.degraded or decision.wanted_reason is not None
    assert not (decision.degraded and decision.reason is Reason.CONFIDENT)
    assert all(math.isfinite(number) for number in decision.numbers.values())
    assert decision.threshold is not None
    assert 0 <= decision.threshold <= 1


@given(SCENES)
def test_nothing_to_decide_means_continue(scene: Scene) -> None:
    """Where nothing is to be decided, decide says CONTINUE, whatever the world is like."""
    if nothing_to_decide(scene.request, scene.observation, scene.state.edge, scene.policy.stop_levels):
        assert scene.decide().action is Action.CONTINUE


@given(SCENES, SHARE, SHARE)
def test_a_higher_threshold_never_escalates_less(scene: Scene, one: float, other: float) -> None:
    """Whatever escalates under a threshold escalates under every higher one."""
    low, high = sorted((one, other))
    lower = scene.ruled(threshold_end=low, threshold_prefix=low)
    higher = scene.ruled(threshold_end=high, threshold_prefix=high)
    assert lower.escalates <= higher.escalates


@given(SCENES, st.floats(-1, 10), st.none() | st.floats(-1, 10))
def test_a_bigger_budget_never_escalates_less(scene: Scene, one: float, other: float | None) -> None:
    """Whatever escalates under a budget escalates under every bigger one, and without one."""
    small, big = (one, None) if other is None else sorted((one, other))
    assert scene.known(budget_left=small).escalates <= scene.known(budget_left=big).escalates


@given(SCENES, st.floats(0, 1000), st.floats(0, 1000))
def test_value_raises_never_lowers_escalation(scene: Scene, one: float, other: float) -> None:
    """Whatever escalates at one value escalates at every higher one, and no value escalates less than 1 does."""
    low, high = sorted((one, other))
    assert scene.asked(value=low).escalates <= scene.asked(value=high).escalates
    assert scene.asked(value=1.0).escalates <= scene.asked(value=low).escalates


@given(SCENES, SHARE, SHARE)
def test_less_tolerated_risk_never_escalates_less(scene: Scene, one: float, other: float) -> None:
    """Whatever escalates at a tolerated risk escalates at every smaller one, and max_risk only ever adds."""
    low, high = sorted((one, other))
    assert scene.asked(max_risk=high).escalates <= scene.asked(max_risk=low).escalates
    assert scene.asked(max_risk=None).escalates <= scene.asked(max_risk=high).escalates


@given(SCENES, st.floats(0, 5))
def test_a_deadline_is_never_exceeded_on_purpose(scene: Scene, left: float) -> None:
    """What escalates is predicted, from all that is known of it, to be answered in the time that is left."""
    hurried = scene.seen(deadline_left_s=left)
    decision = hurried.decide()
    if decision.action is Action.ESCALATE:
        case = make_case(hurried.request, hurried.observation, hurried.state, hurried.policy, now=0.0, uniform=0.5)
        assert case.upstream_least.seconds <= left
        assert decision.numbers["upstream_least_s"] <= left
        if told_tokens(hurried.request, hurried.observation) is not None:
            assert case.upstream.seconds <= left


@given(SCENES, st.booleans())
def test_what_must_stay_never_escalates(scene: Scene, private: bool) -> None:
    """edge_only and private requests never leave the node, whatever else holds."""
    assert not (scene.asked(private=True) if private else scene.asked(tier="edge_only")).escalates


@given(SCENES)
def test_what_no_other_model_reads_never_escalates(scene: Scene) -> None:
    """A request in words of the edge's own model goes nowhere else; what wanted to go says what stood in the way."""
    decision = scene.asked(portable=False).decide()
    assert decision.action is not Action.ESCALATE
    assert not decision.degraded or decision.reason is Reason.CAPABILITY


@given(SCENES)
def test_cloud_only_is_never_answered_by_the_edge(scene: Scene) -> None:
    """A cloud_only request escalates or is refused."""
    assert scene.asked(tier="cloud_only").decide().action in (Action.ESCALATE, Action.REFUSE)


@given(SCENES, st.sampled_from([math.nan, math.inf, -math.inf, -0.01, 1.01]))
def test_an_invalid_confidence_is_never_easy(scene: Scene, confidence: float) -> None:
    """An invalid confidence leads where a confidence of 0 under a positive threshold leads."""
    careful = scene.ruled(threshold_end=0.3, threshold_prefix=0.5)
    invalid, low = careful.seen(confidence=confidence).decide(), careful.seen(confidence=0.0).decide()
    assert (invalid.action, invalid.reason, invalid.degraded) == (low.action, low.reason, low.degraded)


@given(SCENES)
def test_what_cannot_escalate_does_not(scene: Scene) -> None:
    """No escalation through an open breaker, over a dead link, without an upstream, hops or budget, or twice."""
    link, upstream = scene.state.link, scene.state.upstream
    blocked = (
        scene.known(upstream=replace(upstream, admits=False)),
        scene.known(upstream=replace(upstream, configured=False)),
        scene.known(upstream=replace(upstream, hops_left=0)),
        scene.known(link=replace(link, down=True)),
        scene.known(budget_left=0.0),
        scene.seen(upstream_failed=True),
    )
    assert not any(each.escalates for each in blocked)


@given(SCENES, st.lists(MAYBE_SHARE, min_size=5, max_size=25), st.lists(STATES, max_size=2), st.integers(0, 9))
def test_commit_is_never_followed_by_escalate(
    scene: Scene, confidences: list[float | None], states: list[State], prefix: int
) -> None:
    """Once an answer is committed nothing escalates, whatever becomes of confidence, link or upstream."""
    committed: Decision | None = None
    for tokens, confidence in enumerate([*confidences, None], start=1):
        moment = Moment.AFTER if tokens > len(confidences) else Moment.DURING
        observation = Observation(moment, confidence, tokens, previous_tokens=tokens - 1, committed=committed)
        state = [scene.state, *states][tokens % (len(states) + 1)]
        decision = replace(scene.asked(commit_prefix=prefix), observation=observation, state=state).decide()
        if committed is not None:
            assert decision.action in (Action.CONTINUE, Action.ANSWER)
            assert (decision.reason, decision.degraded) == (committed.reason, committed.degraded)
        elif decision.action is Action.COMMIT:
            committed = decision


BREAKER_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["started", "succeeded", "failed", "failed", "abandoned", "wait"]),
        st.floats(-1, 1) | st.floats(0, 20),  # reports may come out of order
    ),
    max_size=60,
)


@settings(max_examples=200)
@given(BREAKER_STEPS, st.integers(1, 3), st.integers(1, 2))
def test_a_breaker_never_closes_without_a_success(steps: list[tuple[str, float]], limit: int, successes: int) -> None:
    """Neither time nor failures nor abandoned trials close a breaker; and a failure never frees it earlier.

    After its longest cooldown it always lets somebody try, whatever happened before.
    """
    limits = BreakerSettings(max_consecutive=limit, successes_to_close=successes, max_cooldown_s=10.0)
    breaker, now = Breaker(limits), 0.0
    for step, pause in steps:
        now += pause
        if step == "started" and not breaker.admits(now):
            continue
        before = breaker
        breaker = before.at(now) if step == "wait" else getattr(before, step)(now)
        if before.state is not BreakerState.CLOSED and breaker.state is BreakerState.CLOSED:
            assert step == "succeeded"
        if step == "failed":
            assert breaker.cooled_at >= before.cooled_at
        assert 0 <= breaker.running_trials <= limits.trials
        assert breaker.admits(now + limits.max_cooldown_s + limits.trial_timeout_s)


NETWORK_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["round_trip", "transfer", "probe", "failed", "failed", "failed"]),
        st.floats(0, 1) | st.floats(0, 20),
        st.floats(0.001, 5) | ANY_FLOAT,
    ),
    max_size=30,
)


@settings(max_examples=200)
@given(NETWORK_STEPS, st.floats(0, 200), st.floats(0, 200))
def test_time_alone_makes_a_link_neither_fine_nor_dead(
    steps: list[tuple[str, float, float]], one: float, other: float
) -> None:
    """What is unknown stays unknown and what is up never goes down by waiting; in the end all is unknown."""
    estimate, now = NetworkEstimate(), 0.0
    for step, pause, sample in steps:
        now += pause
        match step:
            case "round_trip":
                estimate = estimate.round_trip(sample, now)
            case "transfer":
                estimate = estimate.transfer(50_000, sample, now)
            case "probe":
                estimate = estimate.probe(16_384, sample, now)
            case "failed":
                estimate = estimate.failed(now)
    early, late = (estimate.view(now + wait) for wait in sorted((one, other)))
    if estimate.view(now).down:
        assert late in (LinkView(down=True), LinkView()), "what went down comes back unknown"
    assert early.down or not late.down
    for figure in ("rtt_s", "rtt_var_s", "bytes_per_s"):
        assert getattr(late, figure) in (None, getattr(early, figure))
        assert getattr(early, figure) is None or 0 <= getattr(early, figure) < math.inf
    assert not (early.down and early.rtt_s is not None)
    assert estimate.view(now + 1000.0) == LinkView()


FIGURES = st.builds(
    PrecisionFigures,
    bits=st.just(4),
    first_token_s=st.floats(0.01, 2),
    per_token_s=st.floats(0.001, 0.2),
    escalation_share=SHARE,
    expected_error=SHARE,
)
PLAN_LINKS = LINKS | st.builds(LinkView, rtt_s=st.floats(0, 2), rtt_var_s=st.just(0.0), bytes_per_s=st.floats(10, 1e8))


@settings(max_examples=200)
@given(
    st.sampled_from([2, 4, 8]),
    FIGURES,
    FIGURES,
    st.builds(Surroundings, link=PLAN_LINKS, upstream=UPSTREAMS, both_fit=st.booleans()),
    st.floats(0, 0.5),
)
def test_the_precision_does_not_flap_under_constant_inputs(
    start: int, four: PrecisionFigures, other: PrecisionFigures, around: Surroundings, margin: float
) -> None:
    """With nothing changing, the plan changes at most once, and asking again changes nothing."""
    figures = (four, replace(other, bits=8))
    plan, changes = PrecisionPlan(start, 0.0), 0
    for second in range(1, 40):
        plan = plan_precision(plan, figures, around, PrecisionSettings(margin=margin), float(second))
        changes += plan.changed
    assert changes <= 1
    assert plan.bits in (4, 8)


@given(st.lists(st.floats(0.005, 0.05), min_size=30, max_size=60), st.floats(2, 20))
def test_changes_of_precision_are_a_dwell_time_apart(paces: list[float], dwell_s: float) -> None:
    """However the figures jump, two changes are never closer than the dwell time."""
    around = Surroundings(LinkView(0.01, 0.0, 1e7), UpstreamView(first_token_s=0.1, per_token_s=0.02))
    plan, changed_at = PrecisionPlan(8, 0.0), []
    for second, pace in enumerate(paces, start=1):
        figures = (PrecisionFigures(4, 0.2, 0.02, 0.4, 0.05), PrecisionFigures(8, 0.2, pace, 0.3, 0.05))
        plan = plan_precision(plan, figures, around, PrecisionSettings(dwell_s=dwell_s), float(second))
        if plan.changed:
            changed_at.append(plan.since)
    assert all(later - earlier >= dwell_s for earlier, later in pairwise(changed_at))
