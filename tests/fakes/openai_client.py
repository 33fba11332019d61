"""An OpenAiUpstream at an endpoint of its own, and what tests ask of it and read off its answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from edge.openai_upstream.client import OpenAiUpstream
from edge.openai_upstream.settings import OpenAiSettings
from tests.fakes.node import soon
from tests.fakes.openai_endpoint import OpenAiEndpoint, chunk
from wire.messages import Delta, Final, GenerateEvent, GenerateRequest, Message
from wire.service import Exchange

HELLO = (Message("user", "hi"),)
ASK = GenerateRequest(model="big", messages=HELLO, request_id="r", idempotency_key="k", hops=1)
END = chunk(finish="stop")


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
