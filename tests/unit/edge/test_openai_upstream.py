"""An OpenAI-compatible endpoint as upstream, over real sockets: what is asked, what becomes of answers, and lies."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from edge.openai_upstream.client import OpenAiUpstream
from edge.openai_upstream.settings import OpenAiSettings
from edge.upstream import UpstreamSettings
from router.breaker import BreakerSettings
from tests.fakes.node import FakeNode, engine, request, soon
from tests.fakes.openai_endpoint import DONE, USAGE, OpenAiEndpoint, Raw, chunk, event, fault
from wire.errors import (
    ContextTooLong,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    NotSupported,
    Overloaded,
    PermissionDenied,
    PreconditionFailed,
    TooLarge,
    TooManyHops,
    Unauthenticated,
    Unavailable,
    WeirError,
)
from wire.messages import (
    Committed,
    Delta,
    Final,
    GenerateEvent,
    GenerateRequest,
    Message,
    Reason,
    ResponseFormat,
    Sampling,
    Tier,
    Tool,
    ToolCall,
    Usage,
)
from wire.service import Exchange

HELLO = (Message("user", "hi"),)
ASK = GenerateRequest(model="big", messages=HELLO, request_id="r", idempotency_key="k", hops=1)
END = chunk(finish="stop")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


class Exchanges:
    """Satisfies wire.service.ExchangeObserver."""

    def __init__(self) -> None:
        self.seen: list[Exchange] = []

    def on_exchange(self, exchange: Exchange) -> None:
        self.seen.append(exchange)


@asynccontextmanager
async def connected(endpoint: OpenAiEndpoint, **settings: Any) -> AsyncIterator[tuple[OpenAiUpstream, Exchanges]]:
    async with endpoint.running_at():
        exchanges = Exchanges()
        client = OpenAiUpstream(OpenAiSettings(endpoint.url, **settings), exchanges)
        try:
            yield client, exchanges
        finally:
            await client.close()


async def collect(client: OpenAiUpstream, asked: GenerateRequest = ASK, seconds: float = 10.0) -> list[GenerateEvent]:
    async with aclosing(client.generate(asked, soon(seconds))) as events:
        return [item async for item in events]


def text_of(events: list[GenerateEvent]) -> str:
    return "".join(item.text for item in events if isinstance(item, Delta))


def final_of(events: list[GenerateEvent]) -> Final:
    assert isinstance(events[-1], Final)
    return events[-1]


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
        delta = (await collect(client))[1]
    assert final.finish_reason == "tool_calls"
    assert final.tool_calls == (ToolCall("c", "find", '{"a": 1}'), ToolCall("d", "go", "{}"))
    assert isinstance(delta, Delta)
    assert (delta.logprobs, delta.token_bytes) == ((-0.5,), ("é".encode(),))
    assert (delta.top_logprobs[0][0].text, delta.top_logprobs[0][0].logprob) == (b"e", -1)


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
        "more choices",
        (chunk("one"), event({"choices": [{"index": 1, "delta": {"content": "no"}}]}), chunk(" two"), END),
    ),
    (
        "nulls",
        (
            event(
                {"choices": [{"delta": {"content": None, "tool_calls": None}, "finish_reason": None}], "usage": None}
            ),
            chunk("one"),
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


BROKEN: list[tuple[str, Raw, type[WeirError], str]] = [
    ("cut in the middle", Raw(200, (chunk("one"), b"CUT")), Unavailable, "broke off"),
    ("ended without an end", Raw(200, (chunk("one"),)), Unavailable, "broke off"),
    ("[DONE] without an end", Raw(200, (chunk("one"), DONE)), Unavailable, "broke off"),
    ("nothing at all", Raw(200, ()), Unavailable, "broke off"),
    ("garbage", Raw(200, (chunk("one"), b"data: {oops\n\n")), Unavailable, "not JSON"),
    ("no object", Raw(200, (b"data: [1]\n\n",)), Unavailable, "no JSON object"),
    ("deep", Raw(200, (b"data: " + b"[" * 200_000 + b"\n\n",)), Unavailable, "not JSON"),
    ("choices of the wrong kind", Raw(200, (event({"choices": {"a": 1}}),)), Unavailable, "choices"),
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


async def test_a_key_never_shows() -> None:
    endpoint = OpenAiEndpoint(key="right")
    async with connected(endpoint, api_key="wrong-secret-key") as (client, _):
        with pytest.raises(Unauthenticated) as caught:
            await collect(client)
        told = await client.describe(soon())
    assert "wrong-secret-key" not in caught.value.message
    assert "(key)" in caught.value.message
    assert (told.ready, "wrong-secret-key" in told.not_ready_reason) == (False, False)
    assert "upstream_api_key" in told.not_ready_reason


async def test_who_is_busy_is_asked_again_once_when_he_says_and_time_is_left() -> None:
    busy = fault(429, "slow down", {"retry-after": "0"})
    endpoint = OpenAiEndpoint(next=[busy, busy])
    async with connected(endpoint) as (client, _):
        with pytest.raises(Overloaded):
            await collect(client)
        assert len(endpoint.generations) == 2
        endpoint.next = [replace(busy, headers={"retry-after": "1"})]
        began = time.monotonic()
        assert text_of(await collect(client)) == "one two three"
        assert time.monotonic() - began >= 1
        endpoint.next = [replace(busy, headers={"retry-after": "1"})]
        began = time.monotonic()
        with pytest.raises(Overloaded):
            await collect(client, seconds=1.5)
        assert time.monotonic() - began < 0.9


async def test_the_limit_of_tokens_is_asked_for_by_the_name_that_is_known() -> None:
    refusal = fault(400, "use max_completion_tokens", param="max_tokens", code="unsupported_parameter")
    endpoint = OpenAiEndpoint(next=[refusal])
    async with connected(endpoint) as (client, _):
        for _ in range(2):
            await collect(client, replace(ASK, sampling=Sampling(9)))
    names = [[name for name in asked.body if "tokens" in name] for asked in endpoint.generations]
    assert names == [["max_tokens"], ["max_completion_tokens"], ["max_completion_tokens"]]


async def test_a_stream_that_hangs_ends_with_the_deadline_and_one_that_is_done_soon_after() -> None:
    endpoint = OpenAiEndpoint(next=[Raw(200, (chunk("one"),), hang=True), Raw(200, (chunk("one"), END), hang=True)])
    async with connected(endpoint) as (client, _):
        with pytest.raises(DeadlineExceeded):
            await collect(client, seconds=0.5)
        began = time.monotonic()
        assert text_of(await collect(client)) == "one"
        assert time.monotonic() - began < 4
        endpoint.next = [Raw(200, (chunk("one"), END, USAGE, DONE), hang=True)]
        began = time.monotonic()
        await collect(client)
        assert time.monotonic() - began < 1


async def test_leaving_closes_the_connection() -> None:
    endpoint = OpenAiEndpoint(next=[Raw(200, (chunk("one"),), hang=True)])
    async with connected(endpoint) as (client, exchanges):
        events = client.generate(ASK, soon())
        assert isinstance(await anext(events), Committed)
        assert endpoint.running == 1
        await events.aclose()
        async with asyncio.timeout(2):
            while not endpoint.left:
                await asyncio.sleep(0.01)
        assert exchanges.seen[0].code == "CANCELLED"
        assert text_of(await collect(client)) == "one two three"


async def test_nobody_there_is_unavailable() -> None:
    client = OpenAiUpstream(OpenAiSettings("http://127.0.0.1:9/v1"))
    try:
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9 cannot be reached"):
            await collect(client)
        with pytest.raises(Unavailable):
            await client.describe(soon())
        with pytest.raises(DeadlineExceeded):
            await collect(client, seconds=-1)
    finally:
        await client.close()


async def test_describe_tells_the_models_and_measures_the_way() -> None:
    endpoint = OpenAiEndpoint(models=({"id": "a"}, {"id": "b"}, {"id": 7}, {}))
    async with connected(endpoint) as (client, exchanges):
        told = await client.describe(soon(), 4096)
        assert [model.name for model in told.models] == ["a", "b"]
        assert (told.ready, told.tier) == (True, Tier.CLOUD)
        assert "tools" in told.models[0].capabilities
        assert "logprobs" not in told.models[0].capabilities
        with pytest.raises(PreconditionFailed, match="upstream_model"):
            await collect(client, replace(ASK, model=""))
        endpoint.models = ({"id": "only"},)
        await client.describe(soon())
        await collect(client, replace(ASK, model=""))
        assert endpoint.generations[0].body["model"] == "only"
    first = exchanges.seen[0]
    assert (first.method, first.code) == ("Describe", "OK")
    assert first.first_response_ms is not None
    assert first.first_response_ms <= first.total_ms
    assert first.bytes_received > 20


@pytest.mark.parametrize(
    ("listing", "ready"),
    [
        (fault(404, "none"), True),
        (fault(429, "slow"), True),
        (Raw(200, (b"[]",), {}, "application/json"), True),
        (fault(403, "no"), False),
    ],
)
async def test_an_endpoint_that_lists_nothing_may_still_answer(listing: Raw, ready: bool) -> None:
    endpoint = OpenAiEndpoint(listing=listing)
    async with connected(endpoint, model="big", logprobs=True) as (client, _):
        told = await client.describe(soon())
        assert told.ready is ready
        if ready:
            assert [model.name for model in told.models] == ["big"]
            assert {"logprobs", "top_logprobs"} <= set(told.models[0].capabilities)
            assert text_of(await collect(client)) == "one two three"


@pytest.mark.parametrize("listing", [Raw(500, (b"x",)), Raw(200, (b"x" * (3 << 20),)), Raw(200, (b"CUT",))])
async def test_an_endpoint_that_is_ill_is_unavailable(listing: Raw) -> None:
    async with connected(OpenAiEndpoint(listing=listing)) as (client, exchanges):
        with pytest.raises(Unavailable):
            await client.describe(soon())
        assert exchanges.seen[0].code == "UNAVAILABLE"


# --- in a node


@asynccontextmanager
async def node_below(endpoint: OpenAiEndpoint, **settings: Any) -> AsyncIterator[FakeNode]:
    async with connected(endpoint, **settings) as (client, _):
        judged = UpstreamSettings(endpoint.url, breaker=BreakerSettings(max_consecutive=2, cooldown_s=30.0))
        yield await FakeNode(engine(0.4), client, None, judged).ready()  # type: ignore[arg-type]


async def test_a_node_escalates_to_it_without_a_draft() -> None:
    endpoint = OpenAiEndpoint()
    async with node_below(endpoint) as node:
        for rule in ("", "prefix:4"):
            answer = await node.ask(request(rule=rule))
            assert answer.text == "one two three"
            final = answer.final
            assert (final.tier, final.reason, final.hops) == (Tier.CLOUD, Reason.LOW_CONFIDENCE, 1)
            assert (final.draft_tokens_offered, final.release) == (0, "")
            assert final.confidence == pytest.approx(0.4)
    assert endpoint.generations[0].headers["x-weir-hops"] == "1"


async def test_a_wrong_key_degrades_and_opens_the_breaker_and_is_not_the_callers_fault() -> None:
    endpoint = OpenAiEndpoint(key="right")
    async with connected(endpoint, api_key="wrong") as (client, _):
        judged = UpstreamSettings(endpoint.url, "big", breaker=BreakerSettings(max_consecutive=2, cooldown_s=30.0))
        node = FakeNode(engine(0.4), client, None, judged)  # type: ignore[arg-type]
        await node.local.refresh()
        finals = [(await node.ask(request())).final for _ in range(3)]
        assert [final.reason for final in finals] == [
            Reason.UPSTREAM_ERROR,
            Reason.UPSTREAM_ERROR,
            Reason.BREAKER_OPEN,
        ]
        assert all(final.degraded for final in finals)
        refused = (await node.ask(request("cloud_only"))).error
        assert isinstance(refused, Unavailable)
        node.state.described(await client.describe(soon()))
        assert not node.state.view(1).admits
    assert len(endpoint.generations) == 2


async def test_private_requests_and_those_for_the_edge_never_reach_it() -> None:
    endpoint = OpenAiEndpoint()
    async with node_below(endpoint) as node:
        await node.ask(request("edge_only"))
        needy = request(response_format=ResponseFormat("choice", choices=("a", "b")))
        assert isinstance((await node.ask(needy)).error, InvalidRequest)
    assert endpoint.generations == []


async def test_a_stream_that_breaks_is_never_repeated() -> None:
    endpoint = OpenAiEndpoint(next=[Raw(200, (chunk("one"), b"CUT"))])
    async with node_below(endpoint) as node:
        answer = await node.ask(request("cloud_only", "prefix:1"))
    assert answer.text == "one"
    assert isinstance(answer.error, Unavailable)
    assert len(endpoint.generations) == 1
