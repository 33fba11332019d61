"""Connections that bring no request do not hold their places, and ones that work are left alone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from runtime.http_server import HttpServer


async def _slow(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await asyncio.sleep(3.5)
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def connected(app: Any) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    server = HttpServer(app, "127.0.0.1:0", keep_alive_s=1)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.address.rpartition(":")[2]))
    try:
        yield reader, writer
    finally:
        writer.close()
        await server.stop()


@pytest.mark.parametrize("sent", [b"", b"POST /v1", b"GET / HTTP/1.1\r\nhost: x\r\n"])
async def test_a_connection_without_a_whole_head_is_closed(sent: bytes) -> None:
    async with connected(_slow) as (reader, writer):
        writer.write(sent)
        async with asyncio.timeout(5):
            assert await reader.read() == b""


async def test_dripping_headers_do_not_keep_a_connection() -> None:
    async with connected(_slow) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n")

        async def drip() -> None:
            while True:
                await asyncio.sleep(0.2)
                writer.write(b"x-a: b\r\n")

        dripping = asyncio.create_task(drip())
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        dripping.cancel()


async def test_an_answer_that_takes_long_is_left_alone() -> None:
    async with connected(_slow) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(10):
            assert (await reader.read()).endswith(b"ok")


async def _large(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"20000000")]})
    await send({"type": "http.response.body", "body": b"x" * 20_000_000})


async def _endless(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while True:
        await send({"type": "http.response.body", "body": b"x" * 20_000, "more_body": True})
        await asyncio.sleep(0)


async def _unread(server: HttpServer, sent: bytes) -> socket.socket:
    """A client with a small buffer that sends and never reads."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.setblocking(False)
    host, _, port = server.address.rpartition(":")
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, (host, int(port)))
    await loop.sock_sendall(client, sent)
    return client


async def _until_left(server: HttpServer, places: int) -> None:
    async with asyncio.timeout(8):
        while len(server._server.server_state.connections) > places:
            await asyncio.sleep(0.05)


_GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize(("app", "sent"), [(_large, _GET), (_endless, _GET), (_large, _GET * 50)])
async def test_a_client_that_never_reads_loses_its_place(app: Any, sent: bytes) -> None:
    server = HttpServer(app, "127.0.0.1:0", keep_alive_s=1)
    await server.start()
    client = await _unread(server, sent)
    try:
        await asyncio.sleep(0.3)
        assert len(server._server.server_state.connections) == 1
        await _until_left(server, 0)
    finally:
        client.close()
        await server.stop()
