"""A node above an OpenAI-compatible endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from edge.upstream import UpstreamSettings
from router.breaker import BreakerSettings
from tests.fakes.node import EDGE_WORDS, FakeNode, engine, request, soon
from tests.fakes.openai_client import connected
from tests.fakes.openai_endpoint import OpenAiEndpoint, Raw, chunk, event, fault
from wire.errors import InvalidRequest, Unavailable
from wire.messages import Reason, ResponseFormat, Tier


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


@pytest.mark.parametrize("raw", [fault(501, "not here"), fault(404, "no such model", code="model_not_found")])
async def test_what_it_does_not_serve_or_have_degrades_and_opens_no_breaker(raw: Raw) -> None:
    endpoint = OpenAiEndpoint(next=[raw] * 4)
    async with node_below(endpoint) as node:
        finals = [(await node.ask(request())).final for _ in range(4)]
        assert [(final.reason, final.degraded) for final in finals] == [(Reason.UPSTREAM_ERROR, True)] * 4
        assert node.state.view(1).admits
        assert (await node.ask(request())).text == "one two three"


@pytest.mark.parametrize("rule", ["", "prefix:4"])
async def test_more_choices_than_were_asked_for_degrade_and_count(rule: str) -> None:
    two = event({"choices": [{"index": n, "delta": {"content": "no"}} for n in (0, 1)]})
    endpoint = OpenAiEndpoint(next=[Raw(200, (two, two))] * 2)  # it is asked once more after a broken answer
    async with node_below(endpoint) as node:
        answer = await node.ask(request(rule=rule))
        assert (answer.text, answer.final.reason) == ("".join(EDGE_WORDS), Reason.UPSTREAM_ERROR)
        assert not node.state.view(1).admits


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
