"""An OpenAI-compatible endpoint as upstream, over real sockets: keys, times, connections, and what it serves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from edge.http.app import make_app
from edge.http.settings import HttpSettings
from edge.openai_upstream.client import OpenAiUpstream
from edge.openai_upstream.settings import OpenAiSettings
from runtime.http_server import HttpServer
from tests.fakes.inference import FakeInference
from tests.fakes.node import soon
from tests.fakes.openai_client import ASK, END, collect, connected, text_of
from tests.fakes.openai_endpoint import DONE, USAGE, OpenAiEndpoint, Raw, chunk, fault
from wire.errors import DeadlineExceeded, Overloaded, PreconditionFailed, Unauthenticated, Unavailable
from wire.messages import Committed, Constraints, Context, Tier


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


async def test_no_proxy_sees_a_key_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = OpenAiEndpoint()
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with proxy.running_at():
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url.removesuffix("/v1"))
        async with connected(OpenAiEndpoint(key="secret"), api_key="secret") as (client, _):
            assert text_of(await collect(client)) == "one two three"
    assert proxy.connections == 0


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


async def test_one_connection_serves_one_answer_after_the_other() -> None:
    endpoint = OpenAiEndpoint()
    async with connected(endpoint) as (client, _):
        for _ in range(5):
            assert text_of(await collect(client)) == "one two three"
        await client.describe(soon())
    assert (len(endpoint.generations), endpoint.connections) == (5, 1)


@asynccontextmanager
async def below_a_node(service: FakeInference) -> AsyncIterator[tuple[OpenAiUpstream, set[str]]]:
    """A client whose endpoint is a node over `service`, and the addresses of those who asked it."""
    peers, app = set[str](), make_app(service, HttpSettings())

    async def seen(scope: Any, receive: Any, send: Any) -> None:
        peers.add(str(scope.get("client")))
        await app(scope, receive, send)

    server = HttpServer(seen, "127.0.0.1:0")
    await server.start()
    client = OpenAiUpstream(OpenAiSettings(f"http://{server.address}/v1"))
    try:
        yield client, peers
    finally:
        await client.close()
        await server.stop()


async def test_one_connection_serves_a_nodes_answers_too() -> None:
    service = FakeInference(words=("one", " two"))
    async with below_a_node(service) as (client, peers):
        for _ in range(5):
            assert text_of(await collect(client)) == "one two"
    assert (len(service.requests), len(peers)) == (5, 1)


ORDERED = Constraints(max_risk=0.0, commit_rule="end")
MATTERS = Context("session", "tenant", "site", "medical", 0.0, -3, "subject")


async def test_a_node_hears_what_it_decides_by_from_the_first_request_on() -> None:
    service = FakeInference()
    async with below_a_node(service) as (client, _):
        await collect(client, replace(ASK, constraints=ORDERED, context=MATTERS))
        await collect(client, replace(ASK, constraints=ORDERED, context=MATTERS, messages=(), prompt="once"))
        await collect(client)
    assert [asked.constraints for asked in service.requests[:2]] == [ORDERED] * 2
    theirs = Context(request_class="medical", value=0.0, priority=-3)
    assert [asked.context for asked in service.requests] == [theirs, theirs, Context()]


async def test_a_stranger_hears_nothing_of_it_and_one_who_is_not_known_no_text_of_a_class() -> None:
    endpoint = OpenAiEndpoint(listing=Raw(500, (b"x",)))
    async with connected(endpoint) as (client, _):
        with pytest.raises(Unavailable):
            await collect(client, replace(ASK, context=MATTERS))
        assert endpoint.generations == []
        endpoint.listing = None
        for _ in range(2):
            await collect(client, replace(ASK, constraints=ORDERED, context=MATTERS))
    assert [asked.method for asked in endpoint.asked] == ["GET", "GET", "POST", "POST"]
    for asked in endpoint.generations:
        assert "weir" not in asked.body
        assert not any(word in str(asked) for word in ("medical", "session", "tenant", "site", "subject"))


async def test_what_follows_the_end_of_an_answer_is_not_read_for_long() -> None:
    more = (chunk("one"), END, DONE, b": more\n" * 20_000)
    endpoint = OpenAiEndpoint(next=[Raw(200, more, hang=True), Raw(200, (chunk("one"), END, DONE), hang=True)])
    async with connected(endpoint) as (client, _):
        for _ in range(2):
            began = time.monotonic()
            assert text_of(await collect(client)) == "one"
            assert time.monotonic() - began < 1
        assert text_of(await collect(client)) == "one two three"
    assert endpoint.connections == 3


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
