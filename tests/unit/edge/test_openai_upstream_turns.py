"""One read of an upstream's stream may bring thousands of events, and the node serves others meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import pytest

from edge.openai_upstream.events import events_in_turns
from tests.fakes.openai_client import END, collect, connected, text_of
from tests.fakes.openai_endpoint import DONE, OpenAiEndpoint, Raw, chunk
from wire.errors import DeadlineExceeded


@dataclass
class Turns:
    """How often somebody else was served."""

    count: int = 0

    async def take(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.count += 1


@asynccontextmanager
async def others() -> AsyncIterator[Turns]:
    turns = Turns()
    taking = asyncio.create_task(turns.take())
    try:
        yield turns
    finally:
        taking.cancel()


async def one_read(data: bytes) -> AsyncGenerator[bytes, None]:
    yield data
    yield b""


@pytest.mark.parametrize("line", [b"data: {}\n\n", b":\n", b"data:x\n"])
async def test_a_read_of_many_lines_lets_others_have_their_turns(line: bytes) -> None:
    async with others() as turns, aclosing(events_in_turns(one_read(line * 100_000))) as events:
        seen = [data async for data in events]
        assert turns.count >= 5
    assert len(seen) == (100_000 if line.endswith(b"\n\n") else line.startswith(b"data"))


async def test_who_takes_long_over_an_event_gives_way_too() -> None:
    async with others() as turns, aclosing(events_in_turns(one_read(b"data: x\n\n" * 20))) as events:
        async for _ in events:
            began = asyncio.get_running_loop().time()
            while asyncio.get_running_loop().time() - began < 0.003:
                pass
        assert turns.count >= 19


async def test_a_flood_of_events_without_words_ends_at_the_deadline() -> None:
    flood = tuple(b"data: {}\n\n" * 6000 for _ in range(200))
    async with connected(OpenAiEndpoint(next=[Raw(200, flood, hang=True)])) as (client, _):
        with pytest.raises(DeadlineExceeded):
            await collect(client, seconds=0.3)


async def test_what_follows_done_in_the_same_read_is_none_of_the_answer() -> None:
    endpoint = OpenAiEndpoint(next=[Raw(200, (chunk("one") + END + DONE + chunk(" two") + b"data: {oops\n\n",))])
    async with connected(endpoint) as (client, _):
        assert text_of(await collect(client)) == "one"
        assert text_of(await collect(client)) == "one two three"
    assert endpoint.connections == 1
