"""A recorded link on a real socket carries what the record says."""

from __future__ import annotations

import asyncio

from bench.link import Link
from bench.transfer.replay import replay
from bench.transfer.traces import Trace

# 0.4 s at 50 kB/s, 0.2 s of next to nothing, then 200 kB/s.
TRACE = Trace("steps", (0.0, 0.4, 0.6), (50e3, 0.0, 200e3), 1.0)
BYTES = 60_000


async def test_a_transfer_takes_as_long_as_the_trace_says() -> None:
    async def send(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * BYTES)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(send, "127.0.0.1", 0)
    async with server, Link("127.0.0.1", server.sockets[0].getsockname()[1]) as link:
        shaping = asyncio.create_task(replay(link, TRACE))
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        began = loop.time()
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        assert len(await reader.read(-1)) == BYTES
        seconds = loop.time() - began
        writer.close()
        shaping.cancel()
        await asyncio.gather(shaping, return_exceptions=True)
    assert 0.8 * TRACE.seconds_for(BYTES) < seconds < TRACE.seconds_for(BYTES) + 0.6
