"""A real gRPC server in a thread of its own, so that blocking clients can be tried against it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from wire.channel import Authenticator, bind, open_server
from wire.classification import Classifies
from wire.grpc_server import HealthReporter, add_inference
from wire.service import InferenceService


@contextmanager
def served(
    service: object, authenticator: Authenticator | None = None, classifies: Classifies | None = None
) -> Iterator[str]:
    """Serves `service` until the block ends; yields its host:port."""
    loop = asyncio.new_event_loop()
    address: list[str] = []
    up = threading.Event()
    down = asyncio.Event()

    async def serve() -> None:
        server = open_server()
        add_inference(server, cast(InferenceService, service), 30.0, authenticator, classifies=classifies)
        await HealthReporter(server).set(True)
        address.append(f"127.0.0.1:{bind(server, '127.0.0.1:0')}")
        await server.start()
        up.set()
        await down.wait()
        await server.stop(0)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert up.wait(10)
    try:
        yield address[0]
    finally:
        loop.call_soon_threadsafe(down.set)
        thread.join(10)
        loop.close()
