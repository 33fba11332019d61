"""Upstreams that accept a request and fall silent, or are only slow, over real sockets."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import httpx
import pytest

from edge.http.app import make_app
from edge.http.settings import HttpSettings
from edge.patience import Patience
from edge.upstream import UpstreamSettings, UpstreamState
from router.breaker import BreakerSettings, BreakerState
from router.events import BreakerChanged
from runtime.http_server import HttpServer
from tests.fakes.inference import FakeInference
from tests.fakes.node import EDGE_MODEL, EDGE_WORDS, Answer, Events, FakeNode, engine, request
from tests.fakes.openai_client import connected
from tests.fakes.openai_endpoint import DONE, OpenAiEndpoint, Raw, chunk, fault
from wire.channel import bind, open_server
from wire.deadline import Deadline
from wire.description import Description
from wire.errors import DeadlineExceeded, Unavailable
from wire.grpc_client import InferenceClient
from wire.grpc_server import add_inference
from wire.messages import (
    Committed,
    Delta,
    Final,
    GenerateEvent,
    GenerateRequest,
    Reason,
    ResponseFormat,
    Sampling,
    Tier,
    Tool,
    Usage,
)
from wire.service import Call

TIME_S = 4.0
EDGE_TEXT = "".join(EDGE_WORDS)
SILENT = [Raw(silent=True), Raw(200, (), hang=True)]
ROLE = Raw(200, (chunk(role="assistant"),), hang=True)


@asynccontextmanager
async def node_below(endpoint: OpenAiEndpoint, confidence: float = 0.4) -> AsyncIterator[FakeNode]:
    async with connected(endpoint) as (client, _):
        judged = UpstreamSettings(endpoint.url, breaker=BreakerSettings(max_consecutive=2, cooldown_s=30.0))
        yield await FakeNode(engine(confidence), client, None, judged).ready()  # type: ignore[arg-type]


def later(seconds: float) -> Raw:
    """An answer whose first word comes after so long."""
    return Raw(200, (b": soon\n\n", chunk("one") + chunk(finish="stop") + DONE), pause_s=seconds / 2)


async def timed(node: FakeNode, asked: GenerateRequest, seconds: float = TIME_S) -> tuple[Answer, float]:
    began = time.monotonic()
    answer = await node.ask(asked, seconds)
    return answer, time.monotonic() - began


def tripped(node: FakeNode) -> bool:
    return any(isinstance(seen, BreakerChanged) and seen.after is BreakerState.OPEN for seen in node.events.seen)


@pytest.mark.parametrize("rule", ["", "prefix:4"])
@pytest.mark.parametrize("raw", SILENT)
async def test_the_edges_answer_does_not_wait_for_a_silent_upstream_to_the_deadline(raw: Raw, rule: str) -> None:
    endpoint = OpenAiEndpoint()
    async with node_below(endpoint) as node:
        assert (await node.ask(request(rule=rule))).final.tier is Tier.CLOUD  # what is usual is known now
        endpoint.next = [raw] * 2
        for _ in range(2):
            answer, took = await timed(node, request(rule=rule))
            assert took < 0.5 * TIME_S
            assert answer.text == EDGE_TEXT
            final = answer.final
            assert (final.tier, final.reason, final.degraded) == (Tier.EDGE, Reason.UPSTREAM_ERROR, True)
            assert final.wanted_reason is Reason.LOW_CONFIDENCE
        answer, took = await timed(node, request(rule=rule))
        assert (answer.final.reason, len(endpoint.generations)) == (Reason.BREAKER_OPEN, 3)
        assert took < 0.5
        async with asyncio.timeout(2):
            while endpoint.left < 2:  # nobody waits for what was given up
                await asyncio.sleep(0.01)


async def test_one_that_nobody_has_heard_yet_has_longer_and_not_all_of_the_time() -> None:
    endpoint = OpenAiEndpoint(next=[Raw(silent=True)])
    async with node_below(endpoint) as node:
        answer, took = await timed(node, request())
        assert (answer.text, answer.final.degraded) == (EDGE_TEXT, True)
        assert 0.4 * TIME_S < took < 0.7 * TIME_S


@pytest.mark.parametrize("raw", [ROLE, Raw(200, (chunk("one"),), hang=True)])
async def test_one_that_falls_silent_before_anything_was_shown_is_given_up_too(raw: Raw) -> None:
    endpoint = OpenAiEndpoint()
    async with node_below(endpoint) as node:
        await node.ask(request())
        endpoint.next = [raw]
        answer, took = await timed(node, request())
        assert (answer.text, answer.final.reason) == (EDGE_TEXT, Reason.UPSTREAM_ERROR)
        assert took < 0.8 * TIME_S


def usually(node: FakeNode, first_s: float) -> None:
    """Lets the node know an upstream whose first word takes so long."""
    node.state.succeeded(Final("stop", Usage(1, 10), Tier.CLOUD), first_s, first_s, 0)


def thinking(times: int, pause_s: float, *then: bytes) -> Raw:
    reasoning = [chunk(reasoning_content="hm")] * times
    return Raw(200, (chunk(role="assistant"), *reasoning, *then), pause_s=pause_s, hang=not then)


WORD = chunk("one") + chunk(finish="stop") + DONE


async def test_a_role_alone_makes_the_wait_for_a_slow_first_word_no_shorter() -> None:
    async with node_below(
        OpenAiEndpoint(next=[Raw(200, (chunk(role="assistant"), b": on\n\n", WORD), pause_s=0.7)])
    ) as node:
        usually(node, 1.0)
        answer, took = await timed(node, request(), 3.0)
        assert (answer.text, answer.final.tier) == ("one", Tier.CLOUD)
        assert took > 2.0


@pytest.mark.parametrize("rule", ["", "prefix:4"])
async def test_one_that_thinks_aloud_is_not_silent(rule: str) -> None:
    async with node_below(OpenAiEndpoint(next=[thinking(5, 0.25, WORD)])) as node:
        usually(node, 0.1)
        answer, took = await timed(node, request(rule=rule), 3.0)
        assert (answer.text, answer.final.tier) == ("one", Tier.CLOUD)
        assert all(event.text for event in answer.events if isinstance(event, Delta))
        assert took > 1.6


@pytest.mark.parametrize("rule", ["", "prefix:4"])
async def test_thinking_without_an_end_leaves_the_edge_its_time(rule: str) -> None:
    async with node_below(OpenAiEndpoint(next=[thinking(100, 0.05)] * 2)) as node:
        for _ in range(2):
            answer, took = await timed(node, request(rule=rule), 1.5)
            assert (answer.text, answer.final.reason) == (EDGE_TEXT, Reason.UPSTREAM_ERROR)
            assert 0.9 < took < 1.5
        assert not tripped(node)


def test_signs_of_life_do_not_move_the_instant_when_the_edge_must_begin() -> None:
    now = Deadline.after(0.0)
    for word_s, left_s in ((1.0, 8.0), (7.5, 8.0), (0.0, 0.1)):
        times = Patience(Deadline(now.at + 10), Deadline(now.at + left_s), Deadline(now.at + word_s), 1.0)
        assert times.first_word.at <= times.next_word(begun=False).at <= times.fallback.at
        assert times.next_word(begun=True).at <= times.fallback.at


async def test_one_that_may_be_writing_a_tools_call_has_its_time() -> None:
    call = chunk(tool_calls=[{"index": 0, "id": "c", "function": {"name": "find", "arguments": "{}"}}])
    parts = (chunk(role="assistant"), *[b": on\n\n"] * 3, call + chunk(finish="tool_calls") + DONE)
    endpoint = OpenAiEndpoint(next=[Raw(200, parts, pause_s=0.4)])
    async with node_below(endpoint) as node:
        node.engine.model = replace(EDGE_MODEL, capabilities=(*EDGE_MODEL.capabilities, "tools"))
        await node.local.refresh()
        final = (await node.ask(request(tools=(Tool("find"),), tool_choice="auto"), 3.0)).final
        assert (final.tier, final.finish_reason) == (Tier.CLOUD, "tool_calls")


@pytest.mark.parametrize("usual_s", [0.0, 0.8])
async def test_a_first_word_that_comes_within_the_usual_is_waited_for(usual_s: float) -> None:
    endpoint = OpenAiEndpoint(next=[later(usual_s), later(max(1.8 * usual_s, 0.8))])
    async with node_below(endpoint) as node:
        for _ in range(2):
            assert (await node.ask(request(), TIME_S)).final.tier is Tier.CLOUD


@pytest.mark.parametrize("asked", [request("cloud_only"), request(response_format=ResponseFormat("json_object"))])
async def test_where_nobody_else_can_answer_the_upstream_has_all_the_time(asked: GenerateRequest) -> None:
    endpoint = OpenAiEndpoint()
    async with node_below(endpoint) as node:
        await node.ask(request())
        pausing = Raw(200, (chunk("one"), *[b": on\n\n"] * 4, chunk(finish="stop") + DONE), pause_s=0.28)
        endpoint.next = [later(1.6), pausing]
        for _ in range(2):
            assert (await node.ask(asked, 2.0)).final.tier is Tier.CLOUD


async def test_an_answer_that_was_given_up_early_is_still_written_in_time() -> None:
    endpoint = OpenAiEndpoint()
    async with node_below(endpoint, 0.7) as node:
        node.engine.step_s = 0.05
        assert (await node.ask(request())).final.tier is Tier.EDGE  # so that its pace is known
        node.engine.signals = engine(0.01).signals
        endpoint.next = [Raw(silent=True)]
        asked = request(sampling=Sampling(max_tokens=12))
        answer, took = await timed(node, asked, 3.0)
        assert (answer.text, answer.final.reason) == (EDGE_TEXT, Reason.UPSTREAM_ERROR)
        assert (len(endpoint.generations), len(node.engine.requests)) == (1, 3)
        assert took < 2.6


async def test_a_short_deadline_does_not_speak_against_it() -> None:
    endpoint = OpenAiEndpoint(next=[Raw(silent=True)] * 4)
    async with node_below(endpoint) as node:
        for _ in range(4):
            answer, took = await timed(node, request(), 0.7)
            assert (answer.final.reason, took < 0.7) == (Reason.UPSTREAM_ERROR, True)
        assert not tripped(node)


async def test_one_that_died_slow_is_learned_of_from_callers_that_allow_little_more() -> None:
    endpoint = OpenAiEndpoint(next=[Raw(silent=True)] * 4)
    async with node_below(endpoint) as node:
        usually(node, 1.0)
        answers = await asyncio.gather(*(node.ask(request(), 1.6) for _ in range(4)))  # 1.4 s of silence each
        assert [answer.final.reason for answer in answers] == [Reason.UPSTREAM_ERROR] * 4
        assert tripped(node)
        answer, took = await timed(node, request(), 1.6)
        assert (answer.text, answer.final.reason, took < 0.5) == (EDGE_TEXT, Reason.BREAKER_OPEN, True)


def test_an_answer_begins_the_row_of_silences_anew() -> None:
    state = UpstreamState(
        UpstreamSettings("cloud:1", breaker=BreakerSettings(max_consecutive=1)), Events(), time.monotonic
    )
    for _ in range(3):
        for _ in range(2):
            state.fell_silent(9.8, 8.0)
        state.succeeded(Final("stop", Usage(1, 2), Tier.CLOUD), 8.0, 8.1, 0)
    assert state.view(1).admits
    for _ in range(3):
        assert state.view(1).admits
        state.fell_silent(9.8, 8.0)
    assert not state.view(1).admits


def test_signs_of_life_that_never_come_to_a_word_count_from_the_third_call_on() -> None:
    settings = UpstreamSettings("cloud:1", breaker=BreakerSettings(max_consecutive=1))
    state = UpstreamState(settings, Events(), time.monotonic)
    for _ in range(2):
        state.fell_silent(0.1, 8.0, wordless_s=29.0)
        assert state.view(1).admits
    state.fell_silent(0.1, 8.0, wordless_s=7.0)
    assert state.view(1).admits, "no longer than usual"
    state.fell_silent(0.1, 8.0, wordless_s=29.0)
    assert not state.view(1).admits


async def test_a_node_that_was_asked_by_a_node_gives_a_thinking_upstream_up_first() -> None:
    async with node_below(OpenAiEndpoint(next=[thinking(100, 0.05)])) as node:
        usually(node, 0.1)
        asked = replace(request(), hops=1)
        answer, took = await timed(node, asked, 8.0)
        assert (answer.text, answer.final.reason) == (EDGE_TEXT, Reason.UPSTREAM_ERROR)
        assert took < 4.0, "the node below waits three quarters of its time for a first word"


async def test_a_time_to_come_back_that_does_not_fit_is_told_at_once_as_busy() -> None:
    busy = fault(429, "slow down", {"retry-after": "1"})
    endpoint = OpenAiEndpoint()
    async with node_below(endpoint) as node:
        usually(node, 0.1)
        endpoint.next = [busy]
        answer, took = await timed(node, request())
        assert (answer.text, answer.final.reason, took < 0.5) == (EDGE_TEXT, Reason.UPSTREAM_ERROR, True)
        assert [event.error for event in node.events.of("EscalationFailed")] == ["Overloaded"]  # type: ignore[union-attr]
        assert len(endpoint.generations) == 1
        endpoint.next = [busy]
        answer, took = await timed(node, request("cloud_only"))  # which has all of the time
        assert (answer.final.tier, took > 1.0) == (Tier.CLOUD, True)


async def test_one_at_work_when_the_time_is_over_has_not_failed() -> None:
    endless = Raw(200, tuple(chunk(f" {n}") for n in range(200)), pause_s=0.05)
    endpoint = OpenAiEndpoint(next=[endless] * 2)
    async with node_below(endpoint) as node:
        for _ in range(2):
            answer, took = await timed(node, request(), 1.5)
            assert (answer.text, answer.final.reason, took < 1.5) == (EDGE_TEXT, Reason.UPSTREAM_ERROR, True)
        assert not tripped(node)


@dataclass
class _Served:
    """A node's cascade as an InferenceService, for the HTTP routes."""

    node: FakeNode

    def generate(self, request: GenerateRequest, call: Call) -> AsyncGenerator[GenerateEvent, None]:
        return self.node.generate(request, call)

    async def describe(self, call: Call, probe_bytes: int = 0) -> Description:
        return await self.node.engine.describe(call, probe_bytes)


async def test_a_stream_that_falls_silent_in_the_middle_ends_in_time_with_an_error() -> None:
    endpoint = OpenAiEndpoint(next=[Raw(200, (chunk("one"),), hang=True)])
    async with node_below(endpoint) as node:
        server = HttpServer(make_app(_Served(node), HttpSettings()), "127.0.0.1:0")
        await server.start()
        began = time.monotonic()
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        weir = {"commit_rule": "prefix:4", "deadline_ms": 1500}
        async with httpx.AsyncClient(timeout=10) as client:
            told = await client.post(f"http://{server.address}/v1/chat/completions", json={**body, "weir": weir})
        took = time.monotonic() - began
        await server.stop()
        documents = [json.loads(line[6:]) for line in told.text.splitlines() if line.startswith("data: {")]
        texts = [choice["delta"].get("content") for one in documents for choice in one.get("choices", ())]
        assert "".join(text or "" for text in texts) == "one"
        assert "did not answer" in documents[-1]["error"]["message"]
        assert 1.0 < took < 1.6
        assert (await node.ask(request(rule="prefix:4"))).final.tier is Tier.CLOUD


class _NeverLeaves(FakeInference):
    """Says its end and keeps the call open; without words it is silent from the start."""

    async def generate(self, request: GenerateRequest, call: Call) -> AsyncGenerator[GenerateEvent, None]:
        if self.words:
            yield Committed(Tier.CLOUD, Reason.CLOUD_ONLY, request.request_id)
            for word in self.words:
                yield Delta(word)
            yield Final("stop", Usage(1, 2), Tier.CLOUD)
        await asyncio.sleep(60)


@asynccontextmanager
async def node_below_a_gateway(service: FakeInference) -> AsyncIterator[FakeNode]:
    server = open_server()
    add_inference(server, service, 60.0)
    address = f"127.0.0.1:{bind(server, '127.0.0.1:0')}"
    await server.start()
    client = InferenceClient(address)
    try:
        yield await FakeNode(engine(0.4), client).ready()  # type: ignore[arg-type]
    finally:
        await client.close()
        await server.stop(0)


@pytest.mark.parametrize("rule", ["", "prefix:4"])
async def test_an_answer_that_has_ended_does_not_wait_for_the_end_of_its_call(rule: str) -> None:
    async with node_below_a_gateway(_NeverLeaves(words=("one", " two"))) as node:
        answer, took = await timed(node, request(rule=rule))
        assert (answer.text, answer.final.tier) == ("one two", Tier.CLOUD)
        assert took < 1.5
        pace_s = node.state.view(1).per_token_s
        assert pace_s is not None
        assert pace_s < 0.2  # the wait for the call's end is none of the upstream's time per token


class _BreaksAtTheEnd(FakeInference):
    """Says its end, and then its call breaks."""

    async def generate(self, request: GenerateRequest, call: Call) -> AsyncGenerator[GenerateEvent, None]:
        async for event in super().generate(request, call):
            yield event
        raise Unavailable("going down")


@pytest.mark.parametrize("rule", ["", "prefix:4"])
async def test_a_whole_answer_stands_though_its_call_breaks_then(rule: str) -> None:
    service = _BreaksAtTheEnd()
    async with node_below_a_gateway(service) as node:
        for _ in range(4):  # more than the breaker would stand
            answer = await node.ask(request(rule=rule), TIME_S)
            assert (answer.text, answer.final.tier, answer.final.degraded) == ("one two three", Tier.CLOUD, False)
        assert len(service.requests) == 4  # nothing was tried again


async def test_a_silent_gateway_is_given_up_like_any_other() -> None:
    async with node_below_a_gateway(_NeverLeaves(words=())) as node:
        answer, took = await timed(node, request())
        assert (answer.text, answer.final.reason) == (EDGE_TEXT, Reason.UPSTREAM_ERROR)
        assert took < 0.7 * TIME_S
        assert isinstance((await node.ask(request("cloud_only"), 0.5)).error, DeadlineExceeded)
