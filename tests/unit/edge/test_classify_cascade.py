"""Labels: the edge's where it is sure, the upstream's where it is not, degraded where that fails, and who said what."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from edge.calibration import Calibrated
from edge.classify_cascade import ClassifyCascade, ClassifyParts
from edge.judge import CascadeSettings
from edge.local import LocalState
from edge.node import NoUpstream
from edge.upstream import UpstreamSettings, UpstreamState
from router.breaker import BreakerSettings
from router.calibration import Choice, Fit, InForce
from router.confidence import Calibrator
from router.decision import Policy
from router.label_confidence import LABEL_FEATURES
from tests.fakes.classifies import CLOUD_MODEL, EDGE_MODEL, FakeClassifies
from tests.fakes.node import Events
from wire.classification import Classified, ClassifyRequest
from wire.deadline import Deadline
from wire.description import ModelInfo
from wire.errors import (
    ContextTooLong,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    TooManyHops,
    Unavailable,
)
from wire.messages import Constraints, Context, Reason, Tier, TierConstraint
from wire.service import Call

# Confidence grows with the likeliest label's log-prob: 0.8 gives 0.79, 0.5 gives 0.36, against 0.6.
CALIBRATOR = Calibrator("c", 8, "any", "end", (0.0,) * 4, (1.0,) * 4, (4.0, 0.0, 0.0, 0.0), 2.2, 0.6, LABEL_FEATURES)


class FixedCalibrations(Calibrated):
    def __init__(self) -> None:
        super().__init__("any")

    def in_force(self, release: str, precision: int, commit_prefix: int | None) -> InForce:
        choice = Choice(CALIBRATOR, CALIBRATOR.threshold, Fit.EXACT)
        return InForce(choice, choice)


class Node:
    """A cascade of labels over fakes."""

    def __init__(
        self,
        engine: FakeClassifies | None = None,
        upstream: FakeClassifies | None = None,
        **settings: object,
    ) -> None:
        self.engine, self.upstream, self.events = engine or FakeClassifies(), upstream, Events()
        clock = time.monotonic
        self.local = LocalState(self.engine, self.events, clock)  # type: ignore[arg-type]
        judged = UpstreamSettings(
            "cloud:1", breaker=BreakerSettings(max_consecutive=3, cooldown_s=0.3, max_cooldown_s=0.3)
        )
        self.state = UpstreamState(
            judged if upstream else UpstreamSettings(), self.events, clock, task=lambda: "classify"
        )
        parts = ClassifyParts(
            self.engine,
            self.local,
            upstream or NoUpstream(),
            self.state,
            FixedCalibrations(),
            self.events,
            clock,
            lambda: 0.5,
        )
        given = {"policy": Policy(deadline_margin_s=0.0), "node": "here", **settings}
        self.cascade = ClassifyCascade(parts, CascadeSettings(**given))  # type: ignore[arg-type]

    async def ready(self) -> Node:
        await self.local.refresh()
        if self.upstream is not None:
            self.state.described(await self.upstream.describe(call()))
        return self

    async def ask(self, tier: str = "auto", seconds: float = 10.0, **fields: object) -> Classified:
        plain = ClassifyRequest(text="where is my parcel", constraints=Constraints(TierConstraint(tier)))
        return await self.cascade.classify(replace(plain, **fields), call(seconds))  # type: ignore[arg-type]


def call(seconds: float = 10.0) -> Call:
    return Call(Deadline.after(seconds))


def cloud(**fields: object) -> FakeClassifies:
    return FakeClassifies(CLOUD_MODEL, Tier.CLOUD, "cloud", **fields)  # type: ignore[arg-type]


async def test_a_sure_label_stays_on_the_edge_and_says_where_it_came_from() -> None:
    up = cloud()
    node = await Node(upstream=up).ready()
    answer = await node.ask(top_labels=1, hops=2)
    assert (answer.label, answer.tier, answer.node, answer.reason) == ("parcel", Tier.EDGE, "here", Reason.CONFIDENT)
    assert answer.confidence == pytest.approx(0.787, abs=1e-3)
    assert (answer.threshold, answer.degraded, answer.hops, len(answer.scores)) == (0.6, False, 2, 1)
    assert answer.timings_ms["edge_classify"] == 3.0 and answer.timings_ms["edge_total"] > 0
    assert answer.request_id and up.requests == []
    assert node.engine.requests[0].hops == 0 and node.engine.requests[0].top_labels == 0
    assert node.local.last_answered == EDGE_MODEL.release
    assert node.local.view().first_token_s is not None


async def test_an_unsure_label_is_asked_for_above() -> None:
    up = cloud()
    node = await Node(FakeClassifies(share=0.5), up).ready()
    answer = await node.ask(hops=1, idempotency_key="k", return_logits=True)
    assert (answer.tier, answer.node, answer.reason, answer.hops) == (Tier.CLOUD, "cloud", Reason.LOW_CONFIDENCE, 2)
    assert answer.confidence == pytest.approx(0.36, abs=0.01)
    (asked,) = up.requests
    assert (asked.hops, asked.idempotency_key, asked.return_logits, asked.model) == (2, "k", True, "")
    assert answer.timings_ms["cloud_classify"] == 3.0 and answer.timings_ms["upstream_total"] > 0
    assert node.state.view(1).first_token_s is not None


async def test_a_failed_upstream_leaves_the_edges_label_degraded_and_opens_the_breaker() -> None:
    up = cloud(broken=Overloaded("full"))
    node = await Node(FakeClassifies(share=0.5), up).ready()
    for _ in range(3):
        answer = await node.ask()
        assert (answer.tier, answer.degraded, answer.reason) == (Tier.EDGE, True, Reason.UPSTREAM_ERROR)
        assert answer.wanted_reason is Reason.LOW_CONFIDENCE
    assert len(up.requests) == 3
    answer = await node.ask()
    assert (answer.degraded, answer.reason) == (True, Reason.BREAKER_OPEN)
    assert len(up.requests) == 3


async def test_an_upstream_that_was_away_for_a_moment_is_asked_once_more() -> None:
    up = cloud(fails=[Unavailable("restarting")])
    node = await Node(FakeClassifies(share=0.5), up).ready()
    answer = await node.ask()
    assert (answer.tier, len(up.requests)) == (Tier.CLOUD, 2)


async def test_a_slow_upstream_leaves_time_for_the_edges_label() -> None:
    node = await Node(FakeClassifies(share=0.5), cloud(takes_s=5)).ready()
    began = time.monotonic()
    answer = await node.ask(seconds=1.0)
    assert time.monotonic() - began < 1.0
    assert (answer.degraded, answer.node) == (True, "here")
    assert node.upstream is not None and node.upstream.running == 0


async def test_a_silent_upstream_is_given_up_long_before_the_deadline_and_its_breaker_opens() -> None:
    up = cloud()
    node = await Node(FakeClassifies(share=0.5), up).ready()
    assert (await node.ask()).tier is Tier.CLOUD
    up.takes_s = 60
    for _ in range(3):
        began = time.monotonic()
        answer = await node.ask(seconds=5.0)
        assert time.monotonic() - began < 2.5
        assert (answer.node, answer.degraded, answer.reason) == ("here", True, Reason.UPSTREAM_ERROR)
    assert (await node.ask()).reason is Reason.BREAKER_OPEN
    assert up.running == 0


@pytest.mark.parametrize("tier", ["edge_only", "cloud_only"])
async def test_what_the_caller_insists_on_is_kept(tier: str) -> None:
    up = cloud()
    node = await Node(FakeClassifies(share=0.5 if tier == "edge_only" else 0.99), up).ready()
    answer = await node.ask(tier)
    assert answer.reason == tier
    assert (answer.tier, len(up.requests)) == ((Tier.EDGE, 0) if tier == "edge_only" else (Tier.CLOUD, 1))
    assert len(node.engine.requests) == (1 if tier == "edge_only" else 0)


async def test_a_private_text_never_leaves() -> None:
    up = cloud()
    node = await Node(FakeClassifies(share=0.5), up, private_classes=frozenset({"medical"})).ready()
    answer = await node.ask(context=Context(request_class="medical"))
    assert (answer.reason, answer.tier, up.requests) == (Reason.PRIVACY, Tier.EDGE, [])


async def test_what_the_edge_lacks_goes_above_and_is_refused_where_nobody_has_it() -> None:
    up = cloud()
    node = await Node(upstream=up).ready()
    assert (await node.ask(text_pair="b")).reason is Reason.CAPABILITY
    assert (node.engine.requests, len(up.requests)) == ([], 1)
    with pytest.raises(InvalidRequest, match="text_pair"):
        await (await Node().ready()).ask(text_pair="b")


IDS = {"text": "", "input_ids": (0, 7, 2)}
WITH_IDS = (*EDGE_MODEL.capabilities, "input_ids")


def reads_ids(**fields: object) -> FakeClassifies:
    return FakeClassifies(replace(EDGE_MODEL, capabilities=WITH_IDS), **fields)  # type: ignore[arg-type]


async def test_token_ids_are_the_edges_alone_and_an_unsure_label_says_so() -> None:
    up = cloud()
    up.model = replace(CLOUD_MODEL, capabilities=WITH_IDS)  # another model's ids: no help
    node = await Node(reads_ids(), up).ready()
    sure = await node.ask(**IDS)
    assert (sure.tier, sure.reason, sure.degraded) == (Tier.EDGE, Reason.CONFIDENT, False)
    assert node.engine.requests[0].input_ids == (0, 7, 2)
    unsure = await (await Node(reads_ids(share=0.5), up).ready()).ask(**IDS)
    assert (unsure.tier, unsure.degraded, unsure.reason) == (Tier.EDGE, True, Reason.CAPABILITY)
    assert (unsure.wanted_reason, unsure.confidence) == (Reason.LOW_CONFIDENCE, pytest.approx(0.36, abs=0.01))
    with pytest.raises(InvalidRequest, match="cloud_only"):
        await node.ask("cloud_only", **IDS)
    kept = await Node(reads_ids(share=0.5), up, private_classes=frozenset({"medical"})).ready()
    assert (await kept.ask(context=Context(request_class="medical"), **IDS)).reason is Reason.PRIVACY
    assert (await kept.ask("edge_only", **IDS)).reason is Reason.EDGE_ONLY
    assert up.requests == []


async def test_token_ids_that_the_edge_cannot_label_are_nobodys() -> None:
    up = cloud()
    with pytest.raises(InvalidRequest, match="input_ids"):
        await (await Node(upstream=up).ready()).ask(**IDS)
    gone = await Node(reads_ids(broken=Unavailable("gone")), up).ready()
    for _ in range(2):  # as it breaks, and known to be down
        with pytest.raises(Unavailable):
            await gone.ask(**IDS)
    long = await Node(reads_ids(broken=ContextTooLong("input_ids has 9")), up).ready()
    with pytest.raises(ContextTooLong, match="input_ids has 9"):
        await long.ask(**IDS)
    full = await Node(reads_ids(broken=Overloaded("full")), up).ready()
    with pytest.raises(Overloaded, match="full"):
        await full.ask(**IDS)
    assert up.requests == []


async def test_an_upstream_that_only_writes_text_is_not_asked() -> None:
    up = cloud()
    up.model = ModelInfo("writer", "writer@1", capabilities=("stream",))
    node = await Node(FakeClassifies(share=0.5), up).ready()
    answer = await node.ask()
    assert (answer.degraded, answer.reason, up.requests) == (True, Reason.CAPABILITY, [])


async def test_an_engine_that_breaks_off_is_stood_in_for() -> None:
    up = cloud()
    node = await Node(FakeClassifies(broken=Unavailable("gone")), up).ready()
    assert (await node.ask()).tier is Tier.CLOUD
    assert not node.local.available
    before = await node.ask()  # known to be down: the edge is not asked
    assert (before.reason, len(node.engine.requests)) == (Reason.PRE_ROUTED, 1)
    long = await Node(FakeClassifies(broken=ContextTooLong("long")), cloud()).ready()
    assert (await long.ask()).reason is Reason.CAPABILITY


async def test_nobody_to_ask_is_an_error_that_says_so() -> None:
    node = await Node(FakeClassifies(broken=Unavailable("gone"))).ready()
    with pytest.raises(Unavailable, match="gone"):
        await node.ask()
    wrong = await Node(FakeClassifies(broken=InvalidRequest("nonsense"))).ready()
    with pytest.raises(InvalidRequest, match="nonsense"):
        await wrong.ask()
    with pytest.raises(DeadlineExceeded):
        await (await Node().ready()).ask(seconds=0.0)
    with pytest.raises(TooManyHops):
        await (await Node(FakeClassifies(share=0.5), cloud()).ready()).ask("cloud_only", hops=4)
