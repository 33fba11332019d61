"""What the edge's model cannot do goes up by rule `capability`; where no tier can, the refusal names it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.node import CLOUD_MODEL, FakeNode, cloud, engine, request
from wire.errors import InvalidRequest
from wire.messages import Delta, Message, Reason, ResponseFormat, Sampling, Tier, TokenLogprob, Tool, ToolCall

TOOL = Tool("weather")
NEEDS: list[tuple[str, dict[str, Any]]] = [
    ("json_schema", {"response_format": ResponseFormat("json_schema", "{}")}),
    ("json_schema", {"response_format": ResponseFormat("json_object")}),
    ("choice", {"response_format": ResponseFormat("choice", choices=("yes", "no"))}),
    ("tools", {"tools": (TOOL,)}),
    ("tool_turns", {"messages": (Message("user", "hi"), Message("tool", "ok", tool_call_id="c"))}),
    ("top_logprobs", {"top_logprobs": 3}),
    ("min_p", {"sampling": Sampling(temperature=1.0, min_p=0.1)}),
    ("penalties", {"sampling": Sampling(presence_penalty=0.5)}),
    ("penalties", {"sampling": Sampling(logit_bias={3: 1.0})}),
]
EVERYTHING = replace(CLOUD_MODEL, capabilities=(*CLOUD_MODEL.capabilities, *{name for name, _ in NEEDS}))


@pytest.mark.parametrize(("capability", "fields"), NEEDS)
async def test_what_the_edge_lacks_goes_up(capability: str, fields: dict[str, Any]) -> None:
    upstream = cloud()
    upstream.model = EVERYTHING
    node = await FakeNode(engine(0.9), upstream).ready()
    answer = await node.ask(request(**fields))
    assert (answer.final.tier, answer.final.reason) == (Tier.CLOUD, Reason.CAPABILITY)
    assert node.engine.requests == []
    (sent,) = upstream.requests
    assert all(getattr(sent, name) == value for name, value in fields.items()), "nothing is dropped on the way"


@pytest.mark.parametrize(("capability", "fields"), NEEDS)
@pytest.mark.parametrize("tier", ["auto", "edge_only"])
async def test_what_no_tier_can_do_is_refused_by_name(capability: str, fields: dict[str, Any], tier: str) -> None:
    node = await FakeNode(engine(0.9), cloud() if tier == "auto" and capability != "json_schema" else None).ready()
    answer = await node.ask(request(tier, **fields))
    assert isinstance(answer.error, InvalidRequest)
    assert capability in answer.error.message
    assert node.engine.requests == []


async def test_tools_that_may_not_be_called_need_nothing() -> None:
    node = await FakeNode(engine(0.9)).ready()
    assert (await node.ask(request(tools=(TOOL,), tool_choice="none"))).final.tier is Tier.EDGE


async def test_a_call_and_what_belongs_to_tokens_pass_through() -> None:
    local = engine(0.9)
    told = Delta("a", (1,), (-0.1,), local.signals[0], (b"a",), ((TokenLogprob(1, -0.1, b"a"),),))
    local.deltas = (told,)
    local.model = replace(local.model, capabilities=(*local.model.capabilities, "tools", "top_logprobs"))
    node = await FakeNode(local).ready()
    plain = await node.ask(request())
    whole = await node.ask(request(return_logprobs=True, top_logprobs=1))
    assert [event for event in plain.events if isinstance(event, Delta)] == [Delta("a")]
    assert [event for event in whole.events if isinstance(event, Delta)] == [replace(told, signals=None)]
    local.final = replace(plain.final, finish_reason="tool_calls", tool_calls=(ToolCall("c", "weather", "{}"),))
    called = await node.ask(request(tools=(TOOL,)))
    assert called.final.tool_calls == local.final.tool_calls
    assert called.final.finish_reason == "tool_calls"
