"""The engine process: one model, one batcher, served over gRPC on a unix socket.

It listens before it has loaded, so that a launcher sees it starting. It ends with 0 after a signal,
with BROKEN when the model broke, with SHORT for too little memory, with UNUSABLE when the release cannot
be served at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable

import grpc.aio

from edge.engine.config import EngineConfig
from edge.engine.model import Opener, open_model
from edge.engine.room import Memory
from edge.engine.service import EngineService
from wire.channel import bind, open_server
from wire.errors import Overloaded, WeirError
from wire.grpc_server import HealthReporter, add_engine_control, add_inference

REASON_NAME = "engine.reason"  # beside the socket
UNUSABLE = 69
SHORT = 75  # of memory: no fault of the release, so it is worth another try
BROKEN = 70

_log = logging.getLogger("weir.edge.engine")

_STOP_GRACE_S = 5.0
# Long enough for the failed requests' statuses to leave, short enough to be replaced at once.
_BROKEN_GRACE_S = 0.5


async def serve(config: EngineConfig, opener: Opener = open_model, look: Callable[[], Memory] | None = None) -> int:
    """Serves until a signal or a broken model; returns the exit code. See Weights for `look`."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end(code: int) -> None:
        if not ended.done():
            ended.set_result(code)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, 0)
    service = EngineService(config, broken=lambda _detail: end(BROKEN), opener=opener, look=look)
    server = open_server()
    add_inference(server, service, config.default_deadline_s)
    add_engine_control(server, service, config.default_deadline_s)
    health = HealthReporter(server, ("Inference", "EngineControl"))
    await health.set(False)
    bind(server, f"unix:{config.socket}")
    await server.start()
    loading = asyncio.create_task(_load(config, service, health, end))
    code = await ended
    loading.cancel()
    await _stop(server, service, health, code)
    return code


async def _load(
    config: EngineConfig, service: EngineService, health: HealthReporter, end: Callable[[int], None]
) -> None:
    try:
        await service.load()
    except WeirError as error:
        _log.error("the release cannot be served: %s", error.message)
        with contextlib.suppress(OSError):  # for the launcher, which keeps it as the reason
            config.socket.with_name(REASON_NAME).write_text(error.message)
        end(SHORT if isinstance(error, Overloaded) else UNUSABLE)
        return
    await health.set(True)
    _log.info("ready")


async def _stop(server: grpc.aio.Server, service: EngineService, health: HealthReporter, code: int) -> None:
    await health.set(False)
    if code == 0:
        await server.stop(_STOP_GRACE_S)
        service.close()
        return
    service.close()
    await server.stop(_BROKEN_GRACE_S)


def run(config: EngineConfig) -> int:
    """Blocks until the process should end; returns its exit code."""
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(name)s %(levelname)s %(message)s")
    return asyncio.run(serve(config))
