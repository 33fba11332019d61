"""The container's health check, against real servers."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from wire.channel import bind, open_server
from wire.grpc_server import HealthReporter
from wire.health_probe import main, probe


async def test_it_says_what_the_server_says(tmp_path: Path) -> None:
    server = open_server()
    health = HealthReporter(server)
    address = f"127.0.0.1:{bind(server, '127.0.0.1:0')}"
    await server.start()
    await health.set(False)
    assert await probe(address) == "NOT_SERVING"
    await health.set(True)
    assert await probe(address) == "SERVING"
    process = await asyncio.create_subprocess_exec(
        sys.executable, *("-m", "wire.health_probe", address), stdout=asyncio.subprocess.DEVNULL
    )
    async with asyncio.timeout(30):
        assert await process.wait() == 0
    await server.stop(0)
    assert await probe(address) == "UNAVAILABLE"


async def test_a_server_that_never_answers_costs_the_limit() -> None:
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    address = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    async with asyncio.timeout(5):
        assert await probe(address, timeout_s=0.3) in ("DEADLINE_EXCEEDED", "UNAVAILABLE")
    silent.close()


def test_bad_use_is_told_apart() -> None:
    assert main([]) == 2
