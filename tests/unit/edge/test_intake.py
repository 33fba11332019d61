"""What bodies that are being read hold together: bounded, given back whatever happens, and free for small ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from edge.http.app import make_app
from edge.http.intake import FREE_BYTES, PROCESS, WHOLE_BODIES, Crowded, Intake
from edge.http.settings import HttpSettings
from runtime.http_server import HttpServer
from tests.fakes.inference import FakeInference
from tests.fakes.open_inference import HELLO, rest

_MOST_BODY = 1 << 20  # of tests.fakes.open_inference.rest
_CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
_FACES: dict[str, dict[str, Any]] = {"/v1/chat/completions": _CHAT, "/v2/models/fake/infer": {"inputs": [HELLO]}}
_PAD = " " * (4 * FREE_BYTES)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def test_the_beginning_of_each_body_is_free() -> None:
    intake = Intake()
    with intake.body(10) as one, intake.body(10) as other:
        for share in (one, other):
            share.grow(100)
            share.grow(FREE_BYTES)
        assert intake.held == 0
        one.grow(FREE_BYTES + 4)
        other.grow(FREE_BYTES + 6)
        with pytest.raises(Crowded):
            one.grow(FREE_BYTES + 5)
        assert intake.held == 10
    assert intake.held == 0


async def _until_held(least: int, most: int) -> None:
    async with asyncio.timeout(10):
        while not least <= PROCESS.held <= most:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def _half_sent(base: httpx.URL, bodies: int, size: int) -> AsyncIterator[None]:
    """Clients that send `size` bytes of a body and then nothing."""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {_MOST_BODY}\r\n\r\n".encode()
    writers = []
    try:
        for _ in range(bodies):
            _, writer = await asyncio.open_connection(base.host, base.port)
            writers.append(writer)
            writer.write(head + b" " * size)
            await writer.drain()
        yield
    finally:
        for writer in writers:
            writer.close()


@pytest.mark.parametrize("path", list(_FACES))
async def test_bodies_that_are_never_finished_keep_out_large_ones_alone(path: str) -> None:
    document, size = json.dumps(_FACES[path]), _MOST_BODY - 1
    async with rest(FakeInference()) as client:
        # The beginnings that are free make room for one body more, and for most of another.
        async with _half_sent(client.base_url, WHOLE_BODIES + 1, size):
            await _until_held((WHOLE_BODIES + 1) * (size - FREE_BYTES), WHOLE_BODIES * _MOST_BODY)
            large = await client.post(path, content=document + " " * (size - len(document)))
            small = await client.post(path, content=document + " " * 1000)
        await _until_held(0, 0)
        again = await client.post(path, content=document + _PAD)
    assert (large.status_code, small.status_code, again.status_code) == (503, 200, 200)
    assert large.headers["retry-after"] == "1"
    assert "bodies that are being sent" in large.text
    assert PROCESS.held == 0


async def test_a_body_that_does_not_arrive_or_is_too_large_gives_back_what_it_held() -> None:
    server = HttpServer(make_app(FakeInference(), HttpSettings(0.5, max_body_bytes=_MOST_BODY)), "127.0.0.1:0")
    await server.start()
    base = httpx.URL(f"http://{server.address}")
    try:
        async with _half_sent(base, 2, _MOST_BODY // 2):
            await _until_held(_MOST_BODY - 2 * FREE_BYTES, _MOST_BODY)
            await _until_held(0, 0)

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b" " * (_MOST_BODY // 10)

        async with httpx.AsyncClient(base_url=base, trust_env=False) as client:
            answer = await client.post("/v1/chat/completions", content=endless())
        assert answer.status_code == 413
        assert PROCESS.held == 0
    finally:
        await server.stop()
