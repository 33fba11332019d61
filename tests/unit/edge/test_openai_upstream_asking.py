"""What an OpenAI-compatible endpoint is asked for a request of ours, over real sockets."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace

import pytest

from edge.openai_upstream.settings import OpenAiSettings
from tests.fakes.node import soon
from tests.fakes.openai_client import ASK, HELLO, collect, connected, final_of, text_of
from tests.fakes.openai_endpoint import DONE, OpenAiEndpoint, Raw, event, fault
from wire.errors import InvalidRequest, NotSupported
from wire.messages import Committed, Message, Reason, ResponseFormat, Sampling, Tier, Tool, ToolCall, Usage


async def test_an_answer_streams_as_the_clouds() -> None:
    endpoint = OpenAiEndpoint(key="secret", step_s=0.02)
    async with connected(endpoint, api_key="secret") as (client, exchanges):
        loop = asyncio.get_running_loop()
        arrivals = []
        events = []
        async with aclosing(client.generate(ASK, soon())) as stream:
            async for item in stream:
                events.append(item)
                arrivals.append(loop.time())
    assert text_of(events) == "one two three"
    assert events[0] == Committed(Tier.CLOUD, Reason.CLOUD_ONLY, "r")
    final = final_of(events)
    assert (final.tier, final.release, final.weight_format, final.hops) == (Tier.CLOUD, "", "", 1)
    assert final.node == endpoint.url.removeprefix("http://").removesuffix("/v1")
    assert final.usage == Usage(5, 3)
    assert arrivals[-1] - arrivals[0] > 0.05
    [asked] = endpoint.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.body == {
        "model": "big",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert asked.headers["x-weir-hops"] == "1"
    assert asked.headers["idempotency-key"] == "k"
    assert 9000 < int(asked.headers["x-weir-deadline-ms"]) <= 10_000
    [exchange] = exchanges.seen
    assert (exchange.method, exchange.code) == ("Generate", "OK")
    assert exchange.bytes_sent > 50 < exchange.bytes_received
    assert exchange.first_response_ms is not None
    assert "secret" not in repr(OpenAiSettings("http://x", api_key="secret"))


async def test_everything_that_has_a_word_is_asked_for() -> None:
    endpoint = OpenAiEndpoint()
    tools = (Tool("find", "finds", '{"type":"object"}', strict=True),)
    asked = replace(
        ASK,
        model="",
        messages=(
            *HELLO,
            Message("assistant", "", (ToolCall("c1", "find", "{}"),)),
            Message("tool", "42", tool_call_id="c1", name="find"),
        ),
        sampling=Sampling(7, 0.5, 0.9, 40, 3, 0.1, 0.2, 0.3, 1.1, {5: -1.0}),
        stop=("X", "Y"),
        response_format=ResponseFormat("json_schema", '{"type": "object"}'),
        return_logprobs=True,
        top_logprobs=2,
        tools=tools,
        tool_choice="function:find",
    )
    async with connected(endpoint, model="theirs") as (client, _):
        await collect(client, asked)
    body = endpoint.asked[0].body
    assert body["model"] == "theirs"
    assert body["messages"][1] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}],
    }
    assert body["messages"][2] == {"role": "tool", "content": "42", "tool_call_id": "c1", "name": "find"}
    told = {"max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "seed": 3, "min_p": 0.1}
    told |= {"presence_penalty": 0.2, "frequency_penalty": 0.3, "repetition_penalty": 1.1, "logit_bias": {"5": -1.0}}
    assert {name: body[name] for name in told} == told
    assert (body["stop"], body["logprobs"], body["top_logprobs"]) == (["X", "Y"], True, 2)
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert body["tools"][0]["function"] == {
        "name": "find",
        "description": "finds",
        "parameters": {"type": "object"},
        "strict": True,
    }
    assert body["tool_choice"] == {"type": "function", "function": {"name": "find"}}


async def test_a_schema_is_strict_only_where_the_caller_said_so() -> None:
    plain = ResponseFormat("json_schema", '{"type": "object"}')
    endpoint = OpenAiEndpoint()
    async with connected(endpoint) as (client, _):
        await collect(client, replace(ASK, response_format=plain))
        await collect(client, replace(ASK, response_format=replace(plain, name="n", description="d", strict=True)))
    told = [asked.body["response_format"]["json_schema"] for asked in endpoint.generations]
    assert told == [
        {"name": "answer", "schema": {"type": "object"}},
        {"name": "n", "description": "d", "schema": {"type": "object"}, "strict": True},
    ]


async def test_a_prompt_is_a_completion_and_a_choice_is_refused() -> None:
    endpoint = OpenAiEndpoint(next=[Raw(200, (event({"choices": [{"text": "yes", "finish_reason": "length"}]}), DONE))])
    async with connected(endpoint) as (client, _):
        events = await collect(client, replace(ASK, messages=(), prompt="once", sampling=Sampling(3)))
        with pytest.raises(NotSupported, match="choice"):
            await collect(client, replace(ASK, response_format=ResponseFormat("choice", choices=("a", "b"))))
    assert (text_of(events), final_of(events).finish_reason) == ("yes", "length")
    assert endpoint.asked[0].path == "/v1/completions"
    assert endpoint.asked[0].body["prompt"] == "once"
    assert endpoint.asked[0].body["max_tokens"] == 3
    assert final_of(events).usage == Usage(0, 1)  # nobody counted: one event, one token


async def test_the_limit_of_tokens_is_asked_for_by_the_name_that_is_known() -> None:
    refusal = fault(400, "use max_completion_tokens", param="max_tokens", code="unsupported_parameter")
    endpoint = OpenAiEndpoint(next=[refusal])
    async with connected(endpoint) as (client, _):
        for _ in range(2):
            await collect(client, replace(ASK, sampling=Sampling(9)))
    names = [[name for name in asked.body if "tokens" in name] for asked in endpoint.generations]
    assert names == [["max_tokens"], ["max_completion_tokens"], ["max_completion_tokens"]]


def unknown(field: str) -> Raw:
    return fault(400, f"{field} is not known", param=field, code="unsupported_parameter")


async def test_first_requests_at_once_each_find_the_name_that_is_known() -> None:
    endpoint = OpenAiEndpoint(next=[replace(unknown("max_tokens"), pause_s=0.05)] * 2)
    async with connected(endpoint) as (client, _):
        asked = replace(ASK, sampling=Sampling(9))
        both = await asyncio.gather(collect(client, asked), collect(client, asked))
    assert [text_of(events) for events in both] == ["one two three"] * 2
    assert ["max_tokens" in asked.body for asked in endpoint.generations] == [True, True, False, False]


async def test_a_field_that_can_be_spared_is_left_out_where_it_is_refused() -> None:
    extra = {"type": "extra_forbidden", "loc": ["body", "parallel_tool_calls"], "msg": "no such field"}
    listed = Raw(422, (json.dumps({"detail": [extra]}).encode(),), {}, "application/json")
    mentioned = fault(400, "Unrecognized request argument supplied: stream_options")
    endpoint = OpenAiEndpoint(next=[mentioned, listed])
    asked = replace(ASK, tools=(Tool("find"),))
    async with connected(endpoint) as (client, _):
        for _ in range(2):
            assert text_of(await collect(client, asked)) == "one two three"
    sent = [
        [name in asked.body for name in ("stream_options", "parallel_tool_calls")] for asked in endpoint.generations
    ]
    assert sent == [[True, True], [False, True], [False, False], [False, False]]


async def test_a_refusal_that_goes_on_is_the_requests() -> None:
    endpoint = OpenAiEndpoint(next=[unknown("max_tokens"), *[unknown("stream_options")] * 2])
    async with connected(endpoint) as (client, _):
        with pytest.raises(InvalidRequest, match="is not known"):
            await collect(client, replace(ASK, sampling=Sampling(9)))
        await collect(client, replace(ASK, sampling=Sampling(9)))
    # Three tries and no more; what no answer confirmed was not kept.
    assert len(endpoint.generations) == 3 + 1
    assert "max_tokens" in endpoint.generations[3].body


async def test_tools_are_asked_for_one_call_at_a_time() -> None:
    endpoint = OpenAiEndpoint()
    async with connected(endpoint) as (client, _):
        await collect(client, replace(ASK, tools=(Tool("find"),)))
        await collect(client, replace(ASK, tools=(Tool("find"),), tool_choice="none"))
    assert [asked.body.get("parallel_tool_calls") for asked in endpoint.generations] == [False, None]
