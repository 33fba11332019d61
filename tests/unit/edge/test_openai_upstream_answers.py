"""What becomes of an OpenAI-compatible endpoint's answers, however they are cut, and of what is none."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.openai_client import ASK, END, collect, connected, final_of, text_of
from tests.fakes.openai_endpoint import DONE, OpenAiEndpoint, Raw, chunk, event, fault
from wire.errors import (
    ContextTooLong,
    InvalidRequest,
    NotFound,
    Overloaded,
    PermissionDenied,
    PreconditionFailed,
    TooLarge,
    TooManyHops,
    Unauthenticated,
    Unavailable,
    WeirError,
)
from wire.messages import LEAST_LOGPROB, Delta, Sampling, TokenLogprob, ToolCall, Usage


async def test_tool_calls_and_logprobs_are_put_together() -> None:
    calls = [
        chunk(tool_calls=[{"index": 0, "id": "c", "function": {"name": "find", "arguments": '{"a"'}}]),
        chunk(tool_calls=[{"index": 0, "function": {"arguments": ": 1}"}}]),
        chunk(tool_calls=[{"index": 1, "id": "d", "function": {"name": "go"}}]),
        chunk(finish="tool_calls"),
        DONE,
    ]
    ranked = {
        "content": [
            {"token": "é", "bytes": [195, 169], "logprob": -0.5, "top_logprobs": [{"token": "e", "logprob": -1}]}
        ]
    }
    scored = event({"choices": [{"delta": {"content": "é"}, "logprobs": ranked, "finish_reason": "stop"}]})
    endpoint = OpenAiEndpoint(next=[Raw(200, tuple(calls)), Raw(200, (scored, DONE))])
    async with connected(endpoint) as (client, _):
        final = final_of(await collect(client))
        delta = (await collect(client, replace(ASK, return_logprobs=True, top_logprobs=1)))[1]
    assert final.finish_reason == "tool_calls"
    assert final.tool_calls == (ToolCall("c", "find", '{"a": 1}'), ToolCall("d", "go", "{}"))
    assert isinstance(delta, Delta)
    assert (delta.logprobs, delta.token_bytes) == ((-0.5,), ("é".encode(),))
    assert (delta.top_logprobs[0][0].text, delta.top_logprobs[0][0].logprob) == (b"e", -1)


def scored(*alternatives: Any, logprob: Any = -0.5) -> Raw:
    entry = {"token": "x", "logprob": logprob, "bytes": [120], "top_logprobs": list(alternatives)}
    told = {"choices": [{"delta": {"content": "x"}, "logprobs": {"content": [entry]}, "finish_reason": "stop"}]}
    return Raw(200, (event(told), DONE))


async def delta_of(raw: Raw, **asked: Any) -> Delta:
    async with connected(OpenAiEndpoint(next=[raw])) as (client, _):
        found = (await collect(client, replace(ASK, return_logprobs=True, top_logprobs=2, **asked)))[1]
    assert isinstance(found, Delta)
    return found


async def test_what_is_impossible_has_the_least_log_prob_and_what_has_none_is_left_out() -> None:
    others = [{"token": "y", "logprob": -math.inf}, {"token": "z", "logprob": None}, {"token": "w", "logprob": 10**400}]
    delta = await delta_of(scored(*others, "no object", logprob=-math.inf))
    assert delta.logprobs == (LEAST_LOGPROB,)
    assert delta.top_logprobs == ((TokenLogprob(0, LEAST_LOGPROB, b"y"),),)


@pytest.mark.parametrize("logprob", [math.nan, math.inf, 10**400, None, "0", True])
async def test_a_token_whose_log_prob_is_no_number_is_broken(logprob: Any) -> None:
    with pytest.raises(Unavailable, match="log-prob"):
        await delta_of(scored(logprob=logprob))


async def test_log_probs_of_completions_are_read() -> None:
    told: dict[str, Any] = {"tokens": ["é", "x"], "token_logprobs": [-0.5, -1], "text_offset": [0, 1]}
    told["top_logprobs"] = [{"é": -0.5, "e": -1.5, "n": None}, None]
    raw = Raw(200, (event({"choices": [{"text": "éx", "logprobs": told, "finish_reason": "stop"}]}), DONE))
    delta = await delta_of(raw, messages=(), prompt="p")
    assert (delta.text, delta.logprobs, delta.token_bytes) == ("éx", (-0.5, -1.0), ("é".encode(), b"x"))
    assert delta.top_logprobs == ((TokenLogprob(0, -0.5, "é".encode()), TokenLogprob(0, -1.5, b"e")), ())
    told |= {"tokens": ["bytes:\\xc3", "bytes:\\xZZ"], "top_logprobs": None}
    raw = Raw(200, (event({"choices": [{"text": "éx", "logprobs": told, "finish_reason": "stop"}]}), DONE))
    assert (await delta_of(raw, messages=(), prompt="p")).token_bytes == (b"\xc3", b"bytes:\\xZZ")
    told["token_logprobs"] = [-0.5]
    raw = Raw(200, (event({"choices": [{"text": "éx", "logprobs": told, "finish_reason": "stop"}]}), DONE))
    with pytest.raises(Unavailable, match="differ in length"):
        await delta_of(raw, messages=(), prompt="p")


async def test_there_are_no_more_log_probs_than_were_asked_for() -> None:
    others = [{"token": f"t{n}", "logprob": -n} for n in range(40)]
    assert [len(top) for top in (await delta_of(scored(*others))).top_logprobs] == [2]
    table = {"tokens": ["x"], "token_logprobs": [-1], "top_logprobs": [{f"t{n}": -n for n in range(40)}]}
    raw = Raw(200, (event({"choices": [{"text": "x", "logprobs": table, "finish_reason": "stop"}]}), DONE))
    assert [len(top) for top in (await delta_of(raw, messages=(), prompt="p")).top_logprobs] == [2]
    async with connected(OpenAiEndpoint(next=[scored(*others), scored(*others)])) as (client, _):
        assert (await collect(client))[1] == Delta("x")
        alone = (await collect(client, replace(ASK, return_logprobs=True)))[1]
    assert isinstance(alone, Delta)
    assert (alone.logprobs, alone.top_logprobs) == ((-0.5,), ())


def of_tokens(count: int, **fields: Any) -> bytes:
    entries = [{"token": "x", "logprob": -1, **fields}] * count
    return event({"choices": [{"delta": {"content": "x"}, "logprobs": {"content": entries}}]})


async def test_an_answer_has_no_log_probs_of_more_tokens_than_it_may_have() -> None:
    asked = replace(ASK, return_logprobs=True, sampling=Sampling(max_tokens=6))
    most = Raw(200, (of_tokens(4), of_tokens(2), END, DONE))
    async with connected(OpenAiEndpoint(next=[most, Raw(200, (of_tokens(4), of_tokens(3), END))])) as (client, _):
        given = [item for item in await collect(client, asked) if isinstance(item, Delta)]
        assert [len(delta.logprobs) for delta in given] == [4, 2]
        with pytest.raises(Unavailable, match="more tokens than were asked for"):
            await collect(client, asked)


@pytest.mark.parametrize("fields", [{"token": "x" * 1025}, {"bytes": [120] * 1025}, {"bytes": ["x"] * 1025}])
async def test_a_token_is_not_of_any_length(fields: dict[str, Any]) -> None:
    endpoint = OpenAiEndpoint(next=[Raw(200, (of_tokens(1, **fields), END, DONE))])
    async with connected(endpoint) as (client, _):
        with pytest.raises(Unavailable, match="more than 1024 bytes"):
            await collect(client, replace(ASK, return_logprobs=True))


async def test_a_refusal_is_an_answer_that_was_filtered() -> None:
    message = {"role": "assistant", "content": None, "refusal": "I cannot do that"}
    whole = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
    streamed = Raw(200, (chunk(refusal="I cannot"), chunk(refusal=" do that"), END, DONE))
    endpoint = OpenAiEndpoint(next=[streamed, Raw(200, (whole,), content_type="application/json")])
    async with connected(endpoint) as (client, _):
        for _ in range(2):
            events = await collect(client)
            assert (text_of(events), final_of(events).finish_reason) == ("I cannot do that", "content_filter")


# Ways in which servers cut, pad and dress their events; all say "one two" and end.
WAYS: list[tuple[str, tuple[bytes, ...]]] = [
    ("two events in one piece", (chunk("one") + chunk(" two") + END + DONE,)),
    ("byte by byte", tuple(bytes([b]) for b in chunk("one") + chunk(" two") + END + DONE)),
    ("comments to keep alive", (b": hi\n\n", chunk("one"), b":\n\n", b": x\n", chunk(" two"), END, DONE)),
    ("CRLF", tuple(part.replace(b"\n", b"\r\n") for part in (chunk("one"), chunk(" two"), END, DONE))),
    ("CR", tuple(part.replace(b"\n", b"\r") for part in (chunk("one"), chunk(" two"), END, DONE))),
    ("CR and LF apart", (b"data: " + chunk("one")[6:-2] + b"\r", b"\n\r", b"\n", chunk(" two"), END, DONE)),
    ("other fields", (b"event: x\nid: 7\nretry: 9\n" + chunk("one"), chunk(" two"), END, DONE)),
    ("no space", tuple(part.replace(b"data: ", b"data:") for part in (chunk("one"), chunk(" two"), END, DONE))),
    ("no [DONE]", (chunk("one"), chunk(" two"), END)),
    ("no last empty line", (chunk("one"), chunk(" two"), END.rstrip(b"\n"))),
    ("data on several lines", (b'data: {"choices": [{"delta":\ndata: {"content": "one"}}]}\n\n', chunk(" two"), END)),
    (
        "nulls",
        (
            event(
                {"choices": [{"delta": {"content": None, "tool_calls": None}, "finish_reason": None}], "usage": None}
            ),
            event({"choices": [{"index": None, "delta": {"content": "one"}}]}),
            chunk(" two"),
            END,
        ),
    ),
]


@pytest.mark.parametrize(("parts"), [parts for _, parts in WAYS], ids=[name for name, _ in WAYS])
async def test_events_are_read_however_they_are_cut(parts: tuple[bytes, ...]) -> None:
    endpoint = OpenAiEndpoint(next=[Raw(200, parts)])
    async with connected(endpoint) as (client, _):
        events = await collect(client)
    assert text_of(events) == "one two"
    assert final_of(events).finish_reason == "stop"


async def test_a_server_that_does_not_stream_is_understood() -> None:
    message = {"role": "assistant", "content": "whole", "tool_calls": [{"id": "c", "function": {"name": "f"}}]}
    body = json.dumps(
        {
            "choices": [{"message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 2, "completion_tokens": 9},
        }
    )
    endpoint = OpenAiEndpoint(next=[Raw(200, (body.encode(),), content_type="application/json")])
    async with connected(endpoint) as (client, _):
        events = await collect(client)
    assert (text_of(events), final_of(events).usage) == ("whole", Usage(2, 9))
    assert final_of(events).tool_calls == (ToolCall("c", "f", "{}"),)


def failed(**error: Any) -> bytes:
    return event({"error": error})


def many(values: int) -> bytes:
    return b"[" + b"1," * (values - 1) + b"1]"


SECOND: dict[str, Any] = {"index": 0, "delta": {"content": "no"}}
WHOLE: dict[str, Any] = {"index": 0, "message": {"content": "no"}, "finish_reason": "stop"}
BROKEN: list[tuple[str, Raw, type[WeirError], str]] = [
    ("cut in the middle", Raw(200, (chunk("one"), b"CUT")), Unavailable, "broke off"),
    ("ended without an end", Raw(200, (chunk("one"),)), Unavailable, "broke off"),
    ("[DONE] without an end", Raw(200, (chunk("one"), DONE)), Unavailable, "broke off"),
    ("nothing at all", Raw(200, ()), Unavailable, "broke off"),
    ("garbage", Raw(200, (chunk("one"), b"data: {oops\n\n")), Unavailable, "not JSON"),
    ("no object", Raw(200, (b"data: [1]\n\n",)), Unavailable, "no JSON object"),
    ("deep", Raw(200, (b"data: " + b"[" * 20_000 + b"\n\n",)), Unavailable, "not JSON"),
    ("many values", Raw(200, (b"data: " + many(20_002) + b"\n\n",)), Unavailable, "more than 20000 values"),
    ("many at once", Raw(200, (many(100_002),), {}, "application/json"), Unavailable, "more than 100000 values"),
    ("much at once", Raw(200, (b" " * (1 << 20),) * 9, {}, "application/json"), Unavailable, "8388608 bytes"),
    ("choices of the wrong kind", Raw(200, (event({"choices": {"a": 1}}),)), Unavailable, "choices"),
    ("a choice beyond", Raw(200, (event({"choices": [SECOND | {"index": 1}]}),)), Unavailable, "index is 1"),
    ("a second choice", Raw(200, (event({"choices": [SECOND, SECOND]}),)), Unavailable, "2 choices at once"),
    ("an index of words", Raw(200, (event({"choices": [SECOND | {"index": "0"}]}),)), Unavailable, "index is '0'"),
    (
        "two whole choices",
        Raw(200, (json.dumps({"choices": [WHOLE, WHOLE | {"index": 1}]}).encode(),), {}, "application/json"),
        Unavailable,
        "2 choices at once",
    ),
    ("text of the wrong kind", Raw(200, (event({"choices": [{"delta": {"content": 7}}]}),)), Unavailable, "no text"),
    ("calls of the wrong kind", Raw(200, (chunk(tool_calls=[{"index": 10**9}]),)), Unavailable, "index"),
    ("an endless line", Raw(200, (b"data: " + b"x" * (1 << 19),) * 4), Unavailable, "line of more than"),
    ("an endless event", Raw(200, (b"data: " + b"x" * (1 << 19) + b"\n",) * 8), Unavailable, "event of more than"),
    ("packed", Raw(200, (b"x",), {"content-encoding": "gzip"}), Unavailable, "gzip"),
    ("an error in the first event", Raw(200, (failed(message="no", code="model_not_found"),)), NotFound, "no"),
    ("an error in a later event", Raw(200, (chunk("one"), failed(message="died", type="e"))), Unavailable, "died"),
    ("an error of mere text", Raw(200, (event({"error": "died"}),)), Unavailable, "died"),
    ("200 with an error object", fault(200, "busy", code=429), Overloaded, "busy"),
    ("200 with a page", Raw(200, (b"<html>",), {}, "text/html"), Unavailable, "not JSON"),
    ("400", fault(400, "temperature is 9"), InvalidRequest, "temperature is 9"),
    ("400 over the context", fault(400, "too long", code="context_length_exceeded"), ContextTooLong, "too long"),
    ("422", Raw(422, (b'{"detail": "no such field"}',), {}, "application/json"), InvalidRequest, "no such field"),
    ("401", fault(401, "who are you"), Unauthenticated, "upstream_api_key"),
    ("403", fault(403, "not you"), PermissionDenied, "upstream_api_key"),
    ("404", fault(404, "no such model"), NotFound, "no such model"),
    ("412", fault(412, "another release"), PreconditionFailed, "another release"),
    ("too many hops", fault(412, "max_hops", code="hop_limit"), TooManyHops, "max_hops"),
    ("413", fault(413, "large"), TooLarge, "large"),
    ("429 that names no time", fault(429, "slow down"), Overloaded, "slow down"),
    ("429 too long", fault(429, "slow down", {"retry-after": "3600"}), Overloaded, "slow down"),
    ("500", Raw(500, (b"<html>oops</html>",)), Unavailable, "500"),
    ("503, which the escalator tries again", fault(503, "later", {"retry-after": "0"}), Unavailable, "later"),
    ("a redirect", Raw(307, (), {"location": "http://elsewhere.example/"}), Unavailable, "leads elsewhere"),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "kind", "words"), [entry[1:] for entry in BROKEN], ids=[entry[0] for entry in BROKEN])
async def test_what_goes_wrong_is_told_by_its_kind_and_tried_once(raw: Raw, kind: type[WeirError], words: str) -> None:
    endpoint = OpenAiEndpoint(next=[raw])
    async with connected(endpoint) as (client, exchanges):
        with pytest.raises(WeirError, match=words) as caught:
            await collect(client)
        assert type(caught.value) is kind
        assert text_of(await collect(client)) == "one two three"  # the next request fares well
    assert len(endpoint.generations) == 2
    assert exchanges.seen[0].code != "OK"
