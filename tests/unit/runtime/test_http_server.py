"""Connections that bring no request do not hold their places, and ones that work are left alone."""

from __future__ import annotations

import asyncio
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
