"""What every engine process does, whatever its model's task: one model, served over gRPC on a unix socket.

It listens before it has loaded, so that a launcher sees it starting. It ends with 0 after a signal,
with BROKEN when the model broke, with SHORT for too little memory, with UNUSABLE when the release cannot
be served at all (edge.engine.endings). Must not know: any engine of one task.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import grpc.aio

from edge.engine.endings import BROKEN, REASON_NAME, SHORT, UNUSABLE
from wire.channel import bind, open_server
from wire.classification import Classifies
from wire.errors import Overloaded, WeirError
from wire.grpc_server import HealthReporter, add_engine_control, add_inference
from wire.local_stream import StreamServer, stream_path
from wire.scoring import Scores
from wire.service import EngineControl, InferenceService

_log = logging.getLogger("weir.edge.engine")

_STOP_GRACE_S = 5.0
# Long enough for the failed requests' statuses to leave, short enough to be replaced at once.
_BROKEN_GRACE_S = 0.5


class Place(Protocol):
    """Of an engine's configuration, where it listens and how long a call without a deadline has."""

    @property
    def socket(self) -> Path: ...
    @property
    def default_deadline_s(self) -> float: ...


class EngineProcess(InferenceService, Protocol):
    """What an engine process serves."""

    @property
    def control(self) -> EngineControl: ...

    async def load(self) -> None:
        """Raises NotFound, PreconditionFailed, Overloaded."""
        ...

    def close(self) -> None:
        """Fails what runs as Unavailable and ends the threads."""
        ...


@dataclass(frozen=True, slots=True)
class Faces:
    """What of Inference is served beside Generate and Describe."""

    classifies: Classifies | None = None
    scores: Scores | None = None


async def serve_engine(place: Place, make: Callable[[Callable[[str], None]], tuple[EngineProcess, Faces]]) -> int:
    """Serves what `make` makes until a signal, or until it says that it is broken; returns the exit code."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end(code: int) -> None:
        if not ended.done():
            ended.set_result(code)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, 0)
    service, faces = make(lambda _detail: end(BROKEN))
    server = open_server()
    add_inference(server, service, place.default_deadline_s, classifies=faces.classifies, scores=faces.scores)
    add_engine_control(server, service.control, place.default_deadline_s)
    health = HealthReporter(server, ("Inference", "EngineControl"))
    await health.set(False)
    stream = StreamServer(service, stream_path(place.socket))
    await stream.start()
    bind(server, f"unix:{place.socket}")
    await server.start()
    loading = asyncio.create_task(_load(place, service, health, end))
    code = await ended
    loading.cancel()
    await _stop(server, stream, service, health, code)
    return code


async def _load(place: Place, service: EngineProcess, health: HealthReporter, end: Callable[[int], None]) -> None:
    try:
        await service.load()
    except WeirError as error:
        _log.error("the release cannot be served: %s", error.message)
        with contextlib.suppress(OSError):  # for the launcher, which keeps it as the reason
            place.socket.with_name(REASON_NAME).write_text(error.message)
        end(SHORT if isinstance(error, Overloaded) else UNUSABLE)
        return
    except Exception:  # noqa: BLE001 - the process's boundary: it would go on starting for ever
        _log.exception("the release could not be loaded; this process will be replaced")
        end(BROKEN)
        return
    await health.set(True)
    _log.info("ready")


async def _stop(
    server: grpc.aio.Server, stream: StreamServer, service: EngineProcess, health: HealthReporter, code: int
) -> None:
    await health.set(False)
    if code == 0:
        await asyncio.gather(server.stop(_STOP_GRACE_S), stream.stop(_STOP_GRACE_S))
        service.close()
        return
    service.close()
    await asyncio.gather(server.stop(_BROKEN_GRACE_S), stream.stop(_BROKEN_GRACE_S))
