"""Connections whose clients do not read, and what happens where all places are taken."""

from __future__ import annotations

import asyncio
import errno
import json
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from runtime.descriptors import allow_all
from runtime.http_server import HttpServer

_ASK = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _large(_scope: Any, _receive: Any, send: Any) -> None:
    body = b"x" * (16 << 20)
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(len(body)).encode())]}
    )
    await send({"type": "http.response.body", "body": body})


async def _never(_scope: Any, receive: Any, _send: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _brief(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def serving(app: Any, places: int = 8) -> AsyncIterator[HttpServer]:
    server = HttpServer(app, "127.0.0.1:0", max_connections=places, keep_alive_s=1)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def connect(server: HttpServer, stack: AsyncExitStack) -> Streams:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.address.rpartition(":")[2]), limit=1 << 12)
    stack.callback(writer.close)
    return reader, writer


def held(server: HttpServer) -> int:
    """How many connections the server has."""
    return len(server._server.server_state.connections)


async def test_a_client_that_never_reads_its_answer_loses_its_place() -> None:
    async with serving(_large) as server, AsyncExitStack() as stack:
        _, writer = await connect(server, stack)
        writer.write(_ASK)
        await asyncio.sleep(0.2)
        assert held(server) == 1
        async with asyncio.timeout(8):
            while held(server):
                await asyncio.sleep(0.05)


async def test_a_client_that_reads_slowly_keeps_its_place() -> None:
    async with serving(_large) as server, AsyncExitStack() as stack:
        reader, writer = await connect(server, stack)
        writer.write(_ASK)
        await reader.readuntil(b"\r\n\r\n")
        taken = 0
        while taken < 16 << 20:
            taken += len(await reader.read(1 << 20 if taken > 4 << 20 else 1 << 12))
            if taken < 4 << 20 and taken % (1 << 20) < 1 << 12:
                await asyncio.sleep(0.9)
        assert taken == 16 << 20


async def test_a_newcomer_gets_the_place_that_was_idle_longest() -> None:
    async with serving(_brief, places=2) as server, AsyncExitStack() as stack:
        first, second = [await connect(server, stack) for _ in range(2)]
        await asyncio.sleep(0.7)
        second[1].write(_ASK)
        assert (await second[0].readuntil(b"ok")).endswith(b"ok")
        third = await connect(server, stack)
        third[1].write(_ASK)
        assert (await third[0].readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        assert await first[0].read() == b""
        second[1].write(_ASK)
        assert (await second[0].readuntil(b"ok")).endswith(b"ok")


async def test_while_all_are_at_work_a_newcomer_is_told_to_come_back() -> None:
    async with serving(_never, places=2) as server, AsyncExitStack() as stack:
        for _ in range(2):
            _, writer = await connect(server, stack)
            writer.write(_ASK)
        await asyncio.sleep(0.7)
        reader, writer = await connect(server, stack)
        writer.write(_ASK)
        head, _, body = (await reader.read(1 << 12)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in head
        assert json.loads(body)["error"]["code"] == "overloaded"
        assert held(server) <= 3


async def test_without_descriptors_the_listener_neither_raises_nor_spins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(_brief) as server, AsyncExitStack() as stack:
        real, failing = socket.socket.accept, [True, True]

        def accept(listener: socket.socket) -> Any:
            if failing:
                failing.pop()
                raise OSError(errno.EMFILE, "too many open files")
            return real(listener)

        monkeypatch.setattr(socket.socket, "accept", accept)
        with pytest.raises(BlockingIOError):
            server._socket.accept()
        assert not failing, "with the spare descriptor it tries once more, to send that client away"
        reader, writer = await connect(server, stack)
        writer.write(_ASK)
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")


def test_as_many_files_are_allowed_as_may_be_asked_for() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        allowed = allow_all()
        assert allowed == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        assert allowed >= min(hard, 512) if hard != resource.RLIM_INFINITY else allowed > 512
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
