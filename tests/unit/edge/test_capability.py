"""What the edge's model cannot do goes up by rule `capability`; where no tier can, the refusal names it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.inference import FakeInference
from tests.fakes.node import CLOUD_MODEL, FakeNode, cloud, engine, request
from wire.errors import CannotConstrain, InvalidRequest, Unavailable
from wire.messages import (
    Delta,
    GenerateRequest,
    Message,
    Reason,
    ResponseFormat,
    Sampling,
    Tier,
    TokenLogprob,
    Tool,
    ToolCall,
)

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


SCHEMA = request(response_format=ResponseFormat("json_schema", '{"not": {}}'))
UNHELD = CannotConstrain("response_format: this schema cannot be answered by: not")


def unable(**fails: Any) -> FakeInference:
    """An engine that serves schemas, but not this one."""
    local = engine(0.9)
    local.model = replace(local.model, capabilities=(*local.model.capabilities, "json_schema"))
    for name, value in fails.items():
        setattr(local, name, value)
    return local


@pytest.mark.parametrize("fails", [{"fail_before": UNHELD}, {"fail_after": (3, UNHELD)}])
async def test_a_schema_that_the_edge_cannot_hold_goes_up(fails: dict[str, Any]) -> None:
    node = await FakeNode(unable(), cloud()).ready()
    for name, value in fails.items():
        setattr(node.engine, name, value)
    answer = await node.ask(SCHEMA)
    assert (answer.final.tier, answer.final.reason, answer.final.degraded) == (Tier.CLOUD, Reason.CAPABILITY, False)
    assert node.local.available


@pytest.mark.parametrize(
    ("asked", "upstream", "kind", "words"),
    [
        (SCHEMA, None, CannotConstrain, "no other tier can be asked: this node has no upstream"),
        (replace(SCHEMA, constraints=request("edge_only").constraints), cloud(), CannotConstrain, "edge alone"),
        (SCHEMA, replace(cloud(), model=engine().model), CannotConstrain, "no tier in reach"),
        (
            SCHEMA,
            replace(cloud(), fail_after=(0, InvalidRequest("no such keyword"))),
            InvalidRequest,
            "no such keyword",
        ),
        (SCHEMA, replace(cloud(), fail_after=(0, Unavailable("gone"))), Unavailable, "this schema cannot"),
    ],
)
async def test_a_schema_that_nobody_holds_is_refused_with_both_reasons(
    asked: GenerateRequest, upstream: FakeInference | None, kind: type[Exception], words: str
) -> None:
    node = await FakeNode(unable(), upstream).ready()
    node.engine.fail_before = UNHELD
    answer = await node.ask(asked)
    assert type(answer.error) is kind
    assert words in str(answer.error)


async def test_a_stream_that_can_be_held_no_longer_says_so() -> None:
    node = await FakeNode(unable(), cloud()).ready()
    node.engine.fail_after = (8, UNHELD)
    answer = await node.ask(replace(SCHEMA, constraints=request(rule="prefix:4").constraints))
    assert answer.text
    assert type(answer.error) is CannotConstrain
    assert node.upstream is not None
    assert node.upstream.requests == []


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
