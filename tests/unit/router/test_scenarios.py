"""Whole days of a link in virtual time: what the router's parts do together, and why.

A simulated node sends a request every second, probes every other second, and plans its precision as
the edge does. The link answers in RTT + bytes/rate, or not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from router.breaker import Breaker, BreakerSettings, BreakerState
from router.calibration import in_force
from router.confidence import FEATURES, Calibrator
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
from router.events import LinkCondition, link_condition
from router.network import NetworkEstimate
from router.policy import decide
from router.precision import (
    PrecisionFigures,
    PrecisionPlan,
    PrecisionReason,
    PrecisionSettings,
    Surroundings,
    plan_precision,
)

_N = len(FEATURES)
CALIBRATORS = tuple(
    Calibrator(f"c{bits}", bits, "x86-vnni", "end", (0.0,) * _N, (1.0,) * _N, (0.0,) * _N, 0.0, threshold)
    for bits, threshold in ((4, 0.7), (8, 0.55))
)
FIGURES = (
    PrecisionFigures(4, first_token_s=0.26, per_token_s=0.011, escalation_share=0.40, expected_error=0.05),
    PrecisionFigures(8, first_token_s=0.24, per_token_s=0.018, escalation_share=0.30, expected_error=0.05),
)
CLOUD_FIRST_S, CLOUD_TOKEN_S, TOKENS = 0.1, 0.02, 24
PROBE_S = 2


@dataclass(frozen=True)
class Link:
    """What the network is really like. `rate` in bytes a second; `up` False answers nothing."""

    rtt_s: float = 0.01
    rate: float = 1e7
    up: bool = True


WIDE, NARROW, DEAD = Link(), Link(rtt_s=0.4, rate=1000.0), Link(up=False)


@dataclass
class Node:
    """The edge in miniature: the router's values, moved on by what happens."""

    now: float = 0.0
    network: NetworkEstimate = field(default_factory=NetworkEstimate)
    breaker: Breaker = field(default_factory=lambda: Breaker(BreakerSettings(cooldown_s=1.0, max_cooldown_s=8.0)))
    plan: PrecisionPlan = field(default_factory=lambda: PrecisionPlan(8, 0.0))
    plans: list[PrecisionPlan] = field(default_factory=list)
    outcomes: list[tuple[float, Decision]] = field(default_factory=list)
    calls: int = 0

    @property
    def upstream(self) -> UpstreamView:
        return UpstreamView(
            admits=self.breaker.admits(self.now), first_token_s=CLOUD_FIRST_S, per_token_s=CLOUD_TOKEN_S
        )

    def live(self, link: Link, seconds: int, confidences: Iterator[float], deadline_s: float = 10.0) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.probe(link)
            self.replan()
            self.ask(link, next(confidences), deadline_s)

    def probe(self, link: Link) -> None:
        if self.now % PROBE_S:
            return
        padding = self.network.probe_bytes(self.now)
        if link.up:
            self.network = self.network.probe(padding, link.rtt_s + padding / link.rate, self.now)
        else:
            self.network = self.network.failed(self.now)

    def replan(self) -> None:
        around = Surroundings(self.network.view(self.now), self.upstream)
        self.plan = plan_precision(self.plan, FIGURES, around, PrecisionSettings(), self.now)
        if self.plan.changed:
            self.plans.append(self.plan)

    def ask(self, link: Link, confidence: float, deadline_s: float) -> None:
        policy = in_force(CALIBRATORS, self.plan.bits, "x86-vnni").policy(Policy())
        seen = Observation(Moment.AFTER, confidence, TOKENS, deadline_left_s=deadline_s)
        decision = self.decide(seen, policy)
        if decision.action is Action.ESCALATE:
            self.calls += 1
            self.breaker = self.breaker.started(self.now)
            if link.up:
                self.breaker = self.breaker.succeeded(self.now)
            else:
                self.breaker = self.breaker.failed(self.now)
                decision = self.decide(replace(seen, upstream_failed=True), policy)
        self.outcomes.append((self.now, decision))

    def decide(self, seen: Observation, policy: Policy) -> Decision:
        state = State(self.network.view(self.now), self.upstream, EdgeView())
        return decide(Request(max_tokens=64, prompt_bytes=400), seen, state, policy, self.now, 0.5)

    def since(self, start: float) -> Counter[tuple[Action, Reason]]:
        return Counter((d.action, d.reason) for at, d in self.outcomes if at > start)


def every(*confidences: float) -> Iterator[float]:
    while True:
        yield from confidences


def test_a_wide_link_moves_the_node_to_four_bits_and_to_their_threshold() -> None:
    node = Node()
    node.live(WIDE, 30, every(0.6, 0.9))
    assert [(plan.bits, plan.reason) for plan in node.plans] == [(4, PrecisionReason.ESCALATING_IS_CHEAP)]
    late = node.since(15)
    assert late == {(Action.ESCALATE, Reason.LOW_CONFIDENCE): 7, (Action.ANSWER, Reason.CONFIDENT): 8}
    assert node.outcomes[-1][1].threshold == 0.7


def test_a_link_that_narrows_moves_it_to_eight_bits_and_the_same_answers_are_kept() -> None:
    node = Node()
    node.live(WIDE, 30, every(0.6))
    node.live(NARROW, 30, every(0.6))
    assert [(plan.bits, plan.reason) for plan in node.plans] == [
        (4, PrecisionReason.ESCALATING_IS_CHEAP),
        (8, PrecisionReason.ESCALATING_IS_DEAR),
    ]
    assert node.plans[1].since <= 42, "within twelve seconds"
    assert "kB/s" in node.plans[1].text
    assert node.since(45) == {(Action.ANSWER, Reason.CONFIDENT): 15}, "0.6 clears 8-bit's threshold"


def test_a_narrow_link_refuses_what_does_not_fit_the_deadline() -> None:
    node = Node()
    node.live(NARROW, 20, every(0.1), deadline_s=2.0)
    assert node.since(5) == {(Action.ANSWER, Reason.DEADLINE): 15}
    assert all(d.degraded and d.wanted_reason is Reason.LOW_CONFIDENCE for at, d in node.outcomes if at > 5)


def test_a_dead_link_answers_everything_degraded_and_is_hardly_called() -> None:
    node = Node()
    node.live(WIDE, 20, every(0.1))
    calls = node.calls
    node.live(DEAD, 60, every(0.1))
    dead = [decision for at, decision in node.outcomes if at > 20]
    assert len(dead) == 60
    assert all(d.action is Action.ANSWER and d.degraded for d in dead)
    assert {d.reason for d in dead} == {Reason.UPSTREAM_ERROR, Reason.BREAKER_OPEN, Reason.OFFLINE}
    assert node.calls - calls <= 6, "three to trip the breaker, then trials only"
    assert link_condition(node.network.view(node.now)) is LinkCondition.DOWN, "probes keep it known to be down"
    assert (node.plan.bits, node.plans[-1].reason) == (8, PrecisionReason.CLOUD_UNREACHABLE)


def test_when_the_link_recovers_escalation_resumes_and_precision_returns() -> None:
    node = Node()
    node.live(WIDE, 20, every(0.1))
    node.live(DEAD, 30, every(0.1))
    node.live(WIDE, 30, every(0.1))
    resumed = next(at for at, d in node.outcomes if at > 50 and d.action is Action.ESCALATE)
    assert resumed <= 60, "the bound of the cooldown and a probe"
    assert all(d.action is Action.ESCALATE for at, d in node.outcomes if at >= resumed)
    assert node.breaker.state is BreakerState.CLOSED
    assert [plan.bits for plan in node.plans] == [4, 8, 4]


def test_a_link_that_flaps_does_not_make_the_precision_flap() -> None:
    node = Node()
    for _ in range(20):
        node.live(WIDE, 3, every(0.1))
        node.live(DEAD, 3, every(0.1))
    gaps = [later.since - earlier.since for earlier, later in pairwise(node.plans)]
    assert all(gap >= PrecisionSettings().dwell_s for gap in gaps)
    assert len(node.outcomes) == 120
    assert all(d.action in (Action.ANSWER, Action.ESCALATE) for _, d in node.outcomes)


def test_a_node_left_alone_forgets_and_then_finds_out_again() -> None:
    node = Node()
    node.live(WIDE, 10, every(0.9))
    node.now += 3600.0
    assert node.network.view(node.now) == LinkView()
    before = node.plan
    node.replan()
    assert (node.plan.bits, node.plan.reason) == (before.bits, PrecisionReason.LINK_UNKNOWN)
    node.live(WIDE, 5, every(0.1))
    assert link_condition(node.network.view(node.now)) is LinkCondition.KNOWN
    assert node.outcomes[-1][1].action is Action.ESCALATE
