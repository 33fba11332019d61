"""The official client against a fake tier: several answers, log-probs, tool calls, completions, streams of all."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import httpx
import openai
import pytest

from edge.http.sse import event
from tests.fakes.inference import FakeInference
from tests.unit.edge.test_http import BODY, official, serving
from wire.errors import Overloaded, Unavailable
from wire.messages import Delta, Final, Tier, TokenLogprob, ToolCall, Usage

MESSAGES: list[Any] = BODY["messages"]
TOOLS: list[Any] = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
CALLED = Final(
    "tool_calls", Usage(9, 5, 4), Tier.EDGE, release="r", tool_calls=(ToolCall("abc", "weather", '{"a": 1}'),)
)
TOLD = (
    Delta("Gr", (1,), (-0.25,), None, (b"Gr",), ((TokenLogprob(1, -0.25, b"Gr"), TokenLogprob(9, -2.0, b"Ab")),)),
    Delta(
        "",
        (2,),
        (-0.5,),
        None,
        ("ü".encode()[:1],),
        ((TokenLogprob(2, -0.5, b"\xc3"), TokenLogprob(5, -0.9, b"\xe2"), TokenLogprob(6, -2.0, b"\xe2")),),
    ),
    Delta("ü", (3,), (-0.75,), None, ("ü".encode()[1:],), ((),)),
    Delta("", (4,), (-1.0,), None, (b"STOP",), ((),)),
)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


async def test_several_answers_are_made_side_by_side() -> None:
    service = FakeInference(step_s=0.05)
    async with serving(service) as client:
        began = asyncio.get_running_loop().time()
        answer = await official(client).chat.completions.create(model="fake", messages=MESSAGES, n=4, seed=7)
        took = asyncio.get_running_loop().time() - began
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert {choice.message.content for choice in answer.choices} == {"one two three"}
    assert sorted(request.sampling.seed or 0 for request in service.requests) == [7, 8, 9, 10]
    assert took < 4 * 3 * 0.05
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 12)
    assert answer.model_extra is not None
    assert [one["tier"] for one in answer.model_extra["weir"]["choices"]] == ["cloud"] * 4
    assert service.slots_used == 0


async def test_several_answers_stream_interleaved() -> None:
    service = FakeInference(words=tuple(f" w{n}" for n in range(5)), step_s=0.02)
    async with serving(service) as client:
        stream = await official(client).chat.completions.create(
            model="fake", messages=MESSAGES, n=3, stream=True, stream_options={"include_usage": True}
        )
        texts, order, ends, last = ["", "", ""], [], [], None
        async for chunk in stream:
            last = chunk
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                order += [choice.index] if choice.delta.content else []
                ends += [choice.index] if choice.finish_reason else []
    assert texts == ["".join(service.words)] * 3
    assert order != sorted(order)
    assert sorted(ends) == [0, 1, 2]
    assert last is not None
    assert last.usage is not None
    assert last.usage.completion_tokens == 15
    assert last.model_extra is not None
    assert len(last.model_extra["weir"]["choices"]) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_one_answers_fault_ends_all_of_them(stream: bool) -> None:
    service = FakeInference(words=("a",) * 200, step_s=0.01, fail_after=(3, Unavailable("broke off")))
    async with serving(service) as client:
        with pytest.raises(openai.APIError, match="broke off"):
            found = await official(client).chat.completions.create(model="fake", messages=MESSAGES, n=3, stream=stream)  # type: ignore[call-overload]
            async for _ in found:
                pass
        assert service.slots_used == 0


async def test_too_many_answers_for_the_node_are_an_ordinary_refusal() -> None:
    async with serving(FakeInference(fail_before=Overloaded("full"))) as client:
        with pytest.raises(openai.RateLimitError, match="full"):
            await official(client).chat.completions.create(model="fake", messages=MESSAGES, n=3, stream=True)


async def test_a_client_that_leaves_frees_every_answer() -> None:
    service = FakeInference(hang=True)
    async with serving(service) as client:
        body = {**BODY, "n": 4, "stream": True}
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            await anext(answer.aiter_bytes())
            assert service.slots_used == 4
        for _ in range(100):
            if service.slots_used == 0:
                break
            await asyncio.sleep(0.02)
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/chat/completions", json={**BODY, "n": 2}, timeout=0.2)
        for _ in range(100):
            if service.slots_used == 0:
                break
            await asyncio.sleep(0.02)
    assert (service.slots_used, service.left) == (0, 6)


async def test_log_probs_have_openais_shape() -> None:
    async with serving(FakeInference(deltas=TOLD)) as client:
        answer = await official(client).chat.completions.create(
            model="fake", messages=MESSAGES, logprobs=True, top_logprobs=2
        )
        plain = await official(client).chat.completions.create(model="fake", messages=MESSAGES)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [(entry.token, entry.logprob, entry.bytes) for entry in logprobs.content] == [
        ("Gr", -0.25, [71, 114]),
        ("\ufffd", -0.5, [195]),
        ("\ufffd", -0.75, [188]),
    ]
    assert [(other.token, other.logprob) for other in logprobs.content[0].top_logprobs] == [("Gr", -0.25), ("Ab", -2.0)]
    assert plain.choices[0].logprobs is None


async def test_log_probs_stream_with_the_text_they_belong_to() -> None:
    async with serving(FakeInference(deltas=TOLD)) as client:
        stream = await official(client).chat.completions.create(
            model="fake", messages=MESSAGES, logprobs=True, stream=True
        )
        told = [
            (choice.delta.content, [entry.logprob for entry in choice.logprobs.content])
            async for chunk in stream
            for choice in chunk.choices
            if choice.logprobs is not None and choice.logprobs.content is not None
        ]
    assert told == [("Gr", [-0.25]), ("ü", [-0.5, -0.75])]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("value", [-math.inf, math.nan])
async def test_what_json_has_no_number_for_is_told_as_openai_does(stream: bool, value: float) -> None:
    never = (TokenLogprob(1, value, b"y"),)
    service = FakeInference(deltas=(Delta("x", (0,), (value,), token_bytes=(b"x",), top_logprobs=(never,)),))
    asked = {"model": "fake", "messages": MESSAGES, "logprobs": True, "top_logprobs": 1, "stream": stream}
    async with serving(service) as client:
        told = (await client.post("/v1/chat/completions", json=asked)).text
    assert told.count('"logprob":-9999.0') == 2
    assert not any(word in told for word in ("NaN", "Infinity"))


def test_an_event_is_json_or_none_at_all() -> None:
    with pytest.raises(ValueError, match="JSON"):
        event({"confidence": math.nan})


async def test_a_tier_that_tells_no_bytes_is_not_made_to() -> None:
    async with serving(FakeInference()) as client:
        answer = await official(client).chat.completions.create(model="fake", messages=MESSAGES, logprobs=True)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [(entry.token, entry.bytes) for entry in logprobs.content] == [(f"token_id:{n}", None) for n in range(3)]


async def test_a_call_is_given_whole() -> None:
    async with serving(FakeInference(deltas=(Delta(""),), final=CALLED)) as client:
        answer = await official(client).chat.completions.create(model="fake", messages=MESSAGES, tools=TOOLS)
        stream = await official(client).chat.completions.create(
            model="fake", messages=MESSAGES, tools=TOOLS, stream=True
        )
        chunks = [chunk async for chunk in stream]
    choice = answer.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert isinstance(call, openai.types.chat.ChatCompletionMessageFunctionToolCall)
    assert (call.id, call.function.name, call.function.arguments) == ("abc", "weather", '{"a": 1}')
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 4
    (streamed,) = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or []]
    assert streamed.function is not None
    assert (streamed.index, streamed.id, streamed.function.name) == (0, "abc", "weather")
    assert streamed.function.arguments == '{"a": 1}'
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert chunks[-1].model_extra is not None
    assert chunks[-1].model_extra["weir"]["tier"] == "edge"


async def test_completions_answer_each_prompt() -> None:
    service = FakeInference()
    async with serving(service) as client:
        answer = await official(client).completions.create(model="fake", prompt=["a", "b"], n=2, echo=True)
        one = await official(client).completions.create(model="fake", prompt="a", max_tokens=3, stop="x")
    assert [choice.text for choice in answer.choices] == [f"{p}one two three" for p in ("a", "a", "b", "b")]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 12)
    assert (one.object, one.choices[0].finish_reason) == ("text_completion", "stop")
    assert one.model_extra is not None
    assert one.model_extra["weir"]["tier"] == "cloud"


async def test_completions_stream_with_log_probs() -> None:
    async with serving(FakeInference(deltas=TOLD)) as client:
        stream = await official(client).completions.create(model="fake", prompt="a", logprobs=2, stream=True)
        chunks = [chunk async for chunk in stream]
        whole = await official(client).completions.create(model="fake", prompt="a", logprobs=2)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Grü" == whole.choices[0].text
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert (logprobs.tokens, logprobs.token_logprobs) == (
        ["Gr", r"bytes:\xc3", r"bytes:\xbc"],
        [-0.25, -0.5, -0.75],
    )
    assert logprobs.text_offset == [0, 2, 2]
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs == [
        {"Gr": -0.25, "Ab": -2.0},
        {r"bytes:\xc3": -0.5, r"bytes:\xe2": -0.9},
        {},
    ]
    offsets = [offset for chunk in chunks if (told := chunk.choices[0].logprobs) for offset in told.text_offset or []]
    assert offsets == logprobs.text_offset


async def test_offsets_are_into_the_text_wherever_a_character_is_cut() -> None:
    """text[offset:] begins with each token that is whole characters, after any number of split ones."""
    told = "aü€x😀y".encode()
    text, deltas = "", []
    for end in range(1, len(told) + 1):
        grown = told[:end].decode(errors="ignore")
        deltas.append(Delta(grown[len(text) :], (end,), (-0.1,), None, (told[end - 1 : end],), ((),)))
        text = grown
    async with serving(FakeInference(deltas=tuple(deltas))) as client:
        answer = await official(client).completions.create(model="fake", prompt="a", logprobs=0)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.text_offset == [0, 1, 1, 2, 2, 2, 3, 4, 4, 4, 4, 5]
    for token, offset in zip(logprobs.tokens or [], logprobs.text_offset, strict=True):
        assert token.startswith("bytes:") or answer.choices[0].text[offset:].startswith(token)


async def test_offsets_of_tokens_nobody_spelled_are_those_of_their_text() -> None:
    async with serving(FakeInference()) as client:
        answer = await official(client).completions.create(model="fake", prompt="a", logprobs=0)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert (logprobs.tokens, logprobs.text_offset) == ([f"token_id:{n}" for n in range(3)], [0, 3, 7])


async def test_completions_refuse_by_name() -> None:
    async with serving(FakeInference()) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await official(client).completions.create(model="fake", prompt=[1, 2, 3])
        with pytest.raises(openai.BadRequestError, match="suffix is not supported"):
            await official(client).completions.create(model="fake", prompt="a", suffix="b")
    assert (caught.value.param, caught.value.code) == ("prompt", "unsupported_parameter")
