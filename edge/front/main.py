"""Composition root of the front process: every part is made and joined here and in edge.front.model, one per model.

It serves while engines are away: requests are escalated or answered UNAVAILABLE, and an engine is
back in use as soon as it answers. A background loop that dies ends the process, which the launcher
restarts, rather than leaving a node that no longer watches anything.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import time
from collections.abc import Coroutine

from edge.config import EdgeConfig
from edge.events import LogSink
from edge.front.model import Upstream, make_models
from edge.front.settings import http_settings, upstream_settings
from edge.front.updating import Shared
from edge.front.upstream import make_upstream
from edge.http.app import make_app
from edge.http.classify import add_classify
from edge.http.readiness import add_readiness
from edge.http.repository import add_repository
from edge.link import UpstreamLink
from edge.node import EdgeNode, NoUpstream
from edge.openinference.face import FaceSettings, NodeFace
from edge.openinference.rest import add_open_inference as add_rest
from runtime.http_server import HttpServer
from wire.channel import bind, open_server
from wire.grpc_server import HealthReporter, add_inference, add_unserved_fleet
from wire.openinference.messages import SERVICE_NAME
from wire.openinference.server import add_open_inference

UNSTARTABLE = 71

_log = logging.getLogger("weir.edge.front")

_STOP_GRACE_S = 3.0
_HEALTH_S = 0.2


class Front:
    """The parts of a running node."""

    def __init__(self, config: EdgeConfig) -> None:
        """`config` is settled: see edge.models."""
        self.config = config
        sink, settings = LogSink(config.node), upstream_settings(config)
        link = UpstreamLink(settings.network, sink, time.monotonic, settings.escalations_per_minute)
        self._client = make_upstream(config, link)
        above = self._client or NoUpstream()
        self._shared = None if config.store_dir is None else Shared(config, config.store_dir, sink)
        self.models = make_models(config, Upstream(above, above, link), self._shared)
        self.node = EdgeNode([model.node for model in self.models], config.default_model)

    def loops(self) -> list[Coroutine[None, None, None]]:
        """What runs beside the servers."""
        first, *others = (model.follower for model in self.models)
        first.others = tuple(others)
        following = [first.run()] if self.config.upstream else []
        return [*following, *(loop for model in self.models for loop in model.loops())]

    async def close(self) -> None:
        for model in self.models:
            await model.close()
        if self._client is not None:
            await self._client.close()
        if self._shared is not None:
            await self._shared.close()


async def serve(config: EdgeConfig) -> int:
    """Serves until a signal; returns the exit code."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        front = Front(config)
    except OSError as error:
        _log.error("%s", error)
        return UNSTARTABLE
    server = open_server()
    node, longest_s = front.node, config.max_deadline_s
    add_inference(server, node, config.default_deadline_s, max_deadline_s=longest_s, classifies=node, scores=node)
    add_unserved_fleet(server)
    face = NodeFace(node, FaceSettings(config.node, http_settings(config).streaming_rule), node, node)
    add_open_inference(server, face, config.default_deadline_s, max_deadline_s=longest_s)
    health = HealthReporter(server, others=(SERVICE_NAME,))
    try:
        grpc_port = bind(server, config.grpc_address)
        app = make_app(node, http_settings(config))
        add_classify(app, node, http_settings(config))
        add_readiness(app, node)
        add_rest(app, face, http_settings(config))
        if config.store_dir is not None and config.share_store:
            add_repository(app, config.store_dir)
        http = HttpServer(app, config.http_address)
    except OSError as error:
        _log.error("%s", error)
        return UNSTARTABLE
    await server.start()
    await http.start()
    host = config.grpc_address.rpartition(":")[0]
    _announce(config, {"http": http.address, "grpc": f"{host}:{grpc_port}"})
    loops = (*front.loops(), _report(health, node))
    tasks: list[asyncio.Task[None]] = [asyncio.create_task(loop) for loop in loops]
    stop = asyncio.create_task(_until(stopping))
    await asyncio.wait([stop, *tasks], return_when=asyncio.FIRST_COMPLETED)
    died = [task for task in tasks if task.done()]
    for task in died:
        _log.error("a loop of the front ended", exc_info=task.exception())
    for task in (stop, *tasks):
        task.cancel()
    await asyncio.gather(stop, *tasks, return_exceptions=True)
    await asyncio.gather(server.stop(_STOP_GRACE_S), http.stop())
    await front.close()
    return 1 if died else 0


async def _until(stopping: asyncio.Event) -> None:
    await stopping.wait()


async def _report(health: HealthReporter, node: EdgeNode) -> None:
    """Keeps grpc.health.v1 true."""
    told: bool | None = None
    while True:
        if told is not node.ready:
            told = node.ready
            await health.set(told)
        await asyncio.sleep(_HEALTH_S)


def _announce(config: EdgeConfig, addresses: dict[str, str]) -> None:
    """Writes where the node listens, for whoever asked for any free port; whole or not at all."""
    if config.run_dir is None:
        return
    file = config.run_dir / "front.json"
    draft = file.with_suffix(".new")
    draft.write_text(json.dumps({**addresses, "pid": os.getpid()}))
    draft.replace(file)
    _log.info("serving OpenAI HTTP on http://%s and gRPC on %s", addresses["http"], addresses["grpc"])


def run(config: EdgeConfig) -> int:
    """Blocks until a signal; returns the exit code."""
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(name)s %(levelname)s %(message)s")
    for noisy in ("grpc", "asyncio", "uvicorn", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    return asyncio.run(serve(config))
