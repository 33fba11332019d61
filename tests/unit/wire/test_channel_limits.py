"""What a server does with connections that say nothing, or nothing any more."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.inference import FakeInference
from wire import channel
from wire.channel import bind, open_server
from wire.deadline import Deadline
from wire.grpc_client import InferenceClient
from wire.grpc_server import add_inference
from wire.service import Call


async def test_a_connection_that_never_speaks_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "HANDSHAKE_MS", 400)
    server = open_server()
    add_inference(server, FakeInference(), 30.0)
    port = bind(server, "127.0.0.1:0")
    await server.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(5):
            while await reader.read(4096):  # the server's own greeting, then the end
                pass
        writer.close()
    finally:
        await server.stop(0)


async def test_a_client_whose_idle_connection_was_let_go_connects_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "IDLE_MS", 300)
    server = open_server()
    add_inference(server, FakeInference(), 30.0)
    client = InferenceClient(f"127.0.0.1:{bind(server, '127.0.0.1:0')}")
    await server.start()
    try:
        for _ in range(3):
            assert (await client.describe(Call(Deadline.after(5.0)))).node == "fake"
            await asyncio.sleep(0.8)
    finally:
        await client.close()
        await server.stop(0)
