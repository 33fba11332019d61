"""Texts that wait to be made into tokens: whose callers leave, and whose time passes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from edge.engine.config import EngineConfig
from edge.engine.service import EngineService
from runtime.tokenizer import Tokenizer
from tests.fakes.shelf import Shelf
from tests.fakes.steps import FakeSteps
from tests.models import VOCABULARY, write_tokenizer
from wire.channel import bind, open_server
from wire.deadline import Deadline
from wire.errors import DeadlineExceeded
from wire.grpc_client import InferenceClient
from wire.grpc_server import add_inference
from wire.messages import Final, GenerateEvent, GenerateRequest, Sampling
from wire.service import Call, InferenceService


class Held:
    """A tokenizer that lets nothing through until `gate` opens, and keeps what it was given."""

    def __init__(self, real: Tokenizer) -> None:
        self._real = real
        self.gate = threading.Event()
        self.seen: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def encode(self, text: str, special_tokens: bool = True, most: int | None = None) -> list[int]:
        self.seen.append(text)
        self.gate.wait(10)
        return self._real.encode(text, special_tokens, most)


@pytest.fixture
def held(tmp_path: Path) -> Held:
    write_tokenizer(tmp_path)
    return Held(Tokenizer.load(tmp_path))


async def ask(service: InferenceService, prompt: str, seconds: float = 20.0) -> list[GenerateEvent]:
    request = GenerateRequest(prompt=prompt, sampling=Sampling(max_tokens=2))
    return [event async for event in service.generate(request, Call(Deadline.after(seconds)))]


@asynccontextmanager
async def busy(held: Held) -> AsyncIterator[tuple[EngineService, InferenceClient]]:
    """An engine both of whose threads have a text, and a client of it; the texts are answered in the end."""
    settings = EngineConfig(socket=Path("/nowhere"), release_dir=Path("m"), slots=4)
    service = EngineService(settings, print, Shelf(held, FakeSteps(vocab_size=VOCABULARY)))  # type: ignore[arg-type]
    await service.load()
    server = open_server()
    add_inference(server, service, 20.0)
    client = InferenceClient(f"127.0.0.1:{bind(server, '127.0.0.1:0')}")
    await server.start()
    first = [asyncio.create_task(ask(client, text)) for text in ("one", "two")]
    try:
        await until(lambda: len(held.seen) == 2)
        yield service, client
        held.gate.set()
        for answered in await asyncio.gather(*first):
            assert isinstance(answered[-1], Final)
    finally:
        held.gate.set()
        await client.close()
        await server.stop(0)
        service.close()


async def until(true: Any) -> None:
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0.005)


async def test_the_text_of_a_caller_that_left_is_passed_over(held: Held) -> None:
    async with busy(held) as (service, client):
        leaving = asyncio.create_task(ask(client, "three"))
        await until(lambda: service.control._here == 3)
        leaving.cancel()
        await until(lambda: service.control._here == 2)
        later = asyncio.create_task(ask(client, "four"))
        await until(lambda: service.control._here == 3)
        held.gate.set()
        assert isinstance((await later)[-1], Final)
    assert sorted(held.seen) == ["four", "one", "two"]


async def test_a_deadline_that_passes_in_the_queue_is_told_then_and_the_text_passed_over(held: Held) -> None:
    async with busy(held) as (service, client):
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded, match="tokens"):
            await ask(service, "three", 0.3)
        assert time.monotonic() - began < 1.0
        assert service.control._here == 2
        held.gate.set()
        assert isinstance((await ask(client, "four"))[-1], Final)
    assert sorted(held.seen) == ["four", "one", "two"]
