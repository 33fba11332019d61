"""Nodes above nodes: who answered is told truly, loops end, and nothing multiplies on the way."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import pytest

from edge.judge import CascadeSettings
from edge.node import EdgeNode, NodeModel
from edge.upstream import UpstreamSettings
from router.breaker import BreakerSettings
from router.decision import Policy
from tests.fakes.inference import FakeInference
from tests.fakes.node import CLOUD_MODEL, CLOUD_WORDS, EDGE_WORDS, FakeNode, cloud, engine, request, soon
from wire.capabilities import OWN_WORDS
from wire.description import Description
from wire.errors import Overloaded, PreconditionFailed, TooManyHops, Unavailable, from_grpc, grpc_code
from wire.messages import Final, GenerateEvent, GenerateRequest, Reason, Tier, Usage
from wire.service import Call
from wire.validate import RequestLimits

EDGE_TEXT, CLOUD_TEXT = "".join(EDGE_WORDS), "".join(CLOUD_WORDS)
STURDY = UpstreamSettings("up:1", breaker=BreakerSettings(max_consecutive=1000))


@dataclass
class Above:
    """A node as the upstream of another, counting what reaches it. `node` may be set later: a loop."""

    node: FakeNode | None = None
    requests: list[GenerateRequest] = field(default_factory=list)

    async def generate(self, asked: GenerateRequest, call: Call) -> AsyncGenerator[GenerateEvent, None]:
        self.requests.append(asked)
        assert self.node is not None
        async with aclosing(self.node.generate(asked, call)) as events:
            async for event in events:
                yield event

    async def describe(self, call: Call, probe_bytes: int = 0) -> Description:
        assert self.node is not None
        served = self.node.local.served
        return Description("up", Tier.EDGE, models=() if served is None else (served,))


def settings(node: str, max_hops: int = 4) -> CascadeSettings:
    return CascadeSettings(node, limits=RequestLimits(max_hops=max_hops), policy=Policy(deadline_margin_s=0.0))


async def chain(device: float, middle: float, top: FakeInference) -> tuple[FakeNode, Above, FakeNode]:
    """A device below a node below a cloud; the figures are how sure the two engines are."""
    own = engine(middle, ("mid", "dle"))
    own.model = replace(own.model, release="m@2.0.0+m")
    node = await FakeNode(own, top, settings("middle"), STURDY).ready()
    above = Above(node)
    below = FakeNode(engine(device), above, settings("device"), STURDY)  # type: ignore[arg-type]
    return await below.ready(), above, node


async def looping(local: FakeInference, max_hops: int = 4) -> tuple[FakeNode, Above]:
    """A node that is its own upstream."""
    above = Above()
    above.node = node = FakeNode(local, above, settings("a", max_hops), STURDY)  # type: ignore[arg-type]
    return await node.ready(), above


async def test_a_node_above_that_answers_itself_says_so_and_why() -> None:
    device, _, _ = await chain(0.4, 0.95, cloud())
    for rule in ("", "prefix:4"):
        answer = await device.ask(request(rule=rule))
        final = answer.final
        assert answer.text == "middle"
        assert (final.tier, final.node, final.release, final.hops) == (Tier.EDGE, "middle", "m@2.0.0+m", 1)
        assert (final.reason, final.degraded) == (Reason.CONFIDENT, False)
        assert final.confidence == pytest.approx(0.95)
        assert (answer.committed.tier, answer.committed.reason) == (Tier.EDGE, Reason.CONFIDENT)


async def test_a_cloud_above_two_nodes_is_told_as_the_cloud_with_the_reason_of_the_node_asked() -> None:
    device, above, node = await chain(0.4, 0.3, cloud())
    node.engine.final = Final("stop", Usage(3, 2), Tier.EDGE, release="m@2.0.0+m", timings_ms={"prefill": 7.0})
    device.engine.final = Final("stop", Usage(3, 12), Tier.EDGE, release="m@1.0.0+e", timings_ms={"prefill": 3.0})
    answer = await device.ask(request())
    final = answer.final
    assert answer.text == CLOUD_TEXT
    assert (final.tier, final.node, final.release, final.hops) == (Tier.CLOUD, "fake", CLOUD_MODEL.release, 2)
    assert (final.reason, final.confidence) == (Reason.LOW_CONFIDENCE, pytest.approx(0.4))
    assert [asked.hops for asked in above.requests] == [1]
    assert final.timings_ms["edge_prefill"] == 3.0
    assert final.timings_ms["upstream.edge_prefill"] == 7.0
    outer, inner = final.timings_ms["upstream_total"], final.timings_ms["upstream.upstream_total"]
    assert final.timings_ms["total"] >= outer >= final.timings_ms["upstream.total"] >= inner


async def test_a_degraded_answer_of_the_middle_stays_degraded_below() -> None:
    top = cloud()
    device, _, _ = await chain(0.4, 0.3, top)
    top.fail_before = Overloaded("full")
    final = (await device.ask(request())).final
    assert (final.tier, final.node, final.degraded, final.hops) == (Tier.EDGE, "middle", True, 1)
    assert (final.reason, final.wanted_reason) == (Reason.UPSTREAM_ERROR, Reason.LOW_CONFIDENCE)


async def test_what_the_cloud_can_do_is_in_reach_of_the_device() -> None:
    device, _, node = await chain(0.4, 0.95, cloud())
    model = NodeModel(settings("middle"), node.local, node.state, node.cascade)
    described = await EdgeNode([model]).describe(soon())
    assert "json_schema" in described.models[0].capabilities
    assert node.local.served is not None
    assert "json_schema" not in node.local.served.capabilities
    device.state.described(described)
    assert device.state.is_node()


async def test_ids_of_another_models_tokenizer_are_in_nobodys_reach() -> None:
    above = cloud()
    above.model = replace(above.model, capabilities=(*above.model.capabilities, "input_ids", "token_type_ids"))
    _, _, node = await chain(0.4, 0.95, above)
    model = NodeModel(settings("middle"), node.local, node.state, node.cascade)
    (told,) = (await EdgeNode([model]).describe(soon())).models
    assert "json_schema" in told.capabilities
    assert not OWN_WORDS & set(told.capabilities)


@pytest.mark.parametrize("max_hops", [0, 1, 4])
async def test_a_loop_costs_one_call_per_hop_and_ends_in_a_clear_error(max_hops: int) -> None:
    node, above = await looping(engine(0.4), max_hops)
    answer = await node.ask(request("cloud_only"))
    assert isinstance(answer.error, TooManyHops)
    assert "max_hops" in answer.error.message
    assert "own upstream" in answer.error.message
    assert [asked.hops for asked in above.requests] == list(range(1, max_hops + 1))
    assert node.cascade.running == 0


async def test_a_loop_of_nodes_that_can_answer_degrades_for_want_of_budget() -> None:
    node, above = await looping(engine(0.4))
    answer = await node.ask(request())
    final = answer.final
    assert answer.text == EDGE_TEXT
    assert (final.tier, final.reason, final.degraded, final.hops) == (Tier.EDGE, Reason.BUDGET, True, 4)
    assert final.wanted_reason is Reason.LOW_CONFIDENCE
    assert len(above.requests) == 4
    assert all(asked.draft is not None for asked in above.requests)


async def test_a_limit_hit_above_is_not_tried_again_without_the_draft() -> None:
    """A node above may allow fewer hops than this one."""
    top = cloud()
    node = await FakeNode(engine(0.4), top, settings("a"), STURDY).ready()
    top.fail_before = TooManyHops("the request passed 2 nodes")
    final = (await node.ask(request())).final
    assert (final.degraded, final.reason) == (True, Reason.UPSTREAM_ERROR)
    assert len(top.requests) == 1
    assert top.requests[0].draft is not None


@pytest.mark.parametrize(
    ("error", "most"),
    [(Unavailable("down"), 2), (PreconditionFailed("other release"), 2), (Overloaded("full"), 1)],
)
async def test_retries_add_up_along_a_chain_and_do_not_multiply(error: Exception, most: int) -> None:
    """Only the last node, whose upstream is no node, tries twice."""
    top = cloud()
    lower, below = top, None
    for name in ("third", "second", "first"):
        below = await FakeNode(engine(0.4), lower, settings(name), STURDY).ready()
        lower = Above(below)  # type: ignore[assignment]
    assert below is not None
    top.fail_before = error  # type: ignore[assignment]
    answer = await below.ask(request())
    assert answer.text == EDGE_TEXT
    assert answer.final.degraded
    assert len(top.requests) == most


def test_the_error_travels_by_its_name() -> None:
    error = TooManyHops("x")
    assert isinstance(from_grpc(grpc_code(error), "x", "TooManyHops"), TooManyHops)
    assert isinstance(from_grpc(grpc_code(error), "x"), PreconditionFailed)
