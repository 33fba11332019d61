"""Composition root of the front process: every part is made and joined here, and nowhere else.

It serves while the engine is away: requests are escalated or answered UNAVAILABLE, and the engine is
back in use as soon as it answers. A background loop that dies ends the process, which the launcher
restarts, rather than leaving a node that no longer watches anything.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import time
from collections.abc import Callable, Coroutine

from edge.activation import Activator
from edge.calibration import Calibrated
from edge.cascade import Cascade
from edge.config import EdgeConfig
from edge.events import LogSink
from edge.follow import Follower, FollowParts
from edge.front.updating import Around, Suspicious, make_updating
from edge.http.app import HttpSettings, make_app
from edge.http.repository import add_repository
from edge.judge import CascadeParts, CascadeSettings
from edge.local import LocalState
from edge.node import EdgeNode, NoUpstream
from edge.precision import PrecisionLoop, PrecisionLoopSettings, PrecisionParts
from edge.rehearsal import Rehearsal
from edge.remembered import InForce, remember
from edge.upstream import UpstreamSettings, UpstreamState
from release.errors import ReleaseError
from release.listing import list_releases
from release.manifest import Manifest
from release.store import Store
from router.breaker import BreakerSettings
from router.decision import Policy
from router.network import NetworkSettings
from router.precision import PrecisionSettings
from runtime.cpu import cpu_class
from runtime.http_server import HttpServer
from runtime.memory import free_bytes
from wire.channel import ClientTls, bind, open_server
from wire.grpc_client import EngineControlClient, InferenceClient
from wire.grpc_server import HealthReporter, add_inference, add_unserved_fleet
from wire.service import InferenceService
from wire.validate import RequestLimits

UNSTARTABLE = 71

_log = logging.getLogger("weir.edge.front")

_STOP_GRACE_S = 3.0
_HEALTH_S = 0.2


class Front:
    """The parts of a running node."""

    def __init__(self, config: EdgeConfig) -> None:
        self.config = config
        sink, clock = Suspicious(LogSink(config.node)), time.monotonic
        engine = InferenceClient(config.engine_target)
        control = EngineControlClient(config.engine_target)
        self.local = LocalState(engine, sink, clock)
        self.state = UpstreamState(_upstream_settings(config), sink, clock)
        self.upstream: InferenceService = NoUpstream()
        self._clients: list[InferenceClient | EngineControlClient] = [engine, control]
        if config.upstream:
            client = InferenceClient(config.upstream, _tls(config), observer=self.state)
            self.upstream = client
            self._clients.append(client)
        calibrated = Calibrated(cpu_class(), _manifests(config))
        settings = _cascade_settings(config)
        parts = CascadeParts(
            engine, self.local, self.upstream, self.state, calibrated, sink, clock, random.SystemRandom().random
        )
        activator = Activator(control, self.local, sink, clock, _memory(config))
        rehearsal = Rehearsal(engine, activator, clock) if config.rehearse and config.upstream else None
        planning = PrecisionParts(
            self.local,
            self.state,
            calibrated,
            activator,
            sink,
            clock,
            _both_fit(calibrated, config.memory_budget_bytes),
            rehearsal,
        )
        self.precision = PrecisionLoop(planning, _precision_settings(config))
        own_releases = config.releases_dir if config.store_dir is None else None
        following = FollowParts(self.upstream, self.state, self.local, calibrated, activator, sink, clock, own_releases)
        self.follower = Follower(following, config.probe_interval_s)
        around = Around(self.local, self.state, calibrated, activator, self.precision, sink)
        self.updating = updating = make_updating(config, around, sink)
        told = (lambda: "") if updating is None else (lambda: updating.updater.status.line)
        self.node = EdgeNode(Cascade(parts, settings), settings, self.local, self.state, told)

    def loops(self) -> list[Coroutine[None, None, None]]:
        """What runs beside the servers."""
        following = [self.follower.run()] if self.config.upstream else []
        updating = [self.updating.run()] if self.updating is not None else []
        return [self.local.watch(), self.precision.run(), *following, *updating]

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        if self.updating is not None:
            await self.updating.close()


async def serve(config: EdgeConfig) -> int:
    """Serves until a signal; returns the exit code."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    front = Front(config)
    server = open_server()
    add_inference(server, front.node, config.default_deadline_s, max_deadline_s=config.max_deadline_s)
    add_unserved_fleet(server)
    health = HealthReporter(server)
    try:
        grpc_port = bind(server, config.grpc_address)
        app = make_app(front.node, _http_settings(config))
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
    loops = (*front.loops(), _report(health, front.node))
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


def _manifests(config: EdgeConfig) -> list[Manifest]:
    """Of the releases that are here now; the updater adds those that come."""
    found = list(Store(config.store_dir).found()) if config.store_dir is not None else []
    try:
        found += list_releases(config.releases_dir).found if config.releases_dir is not None else ()
    except ReleaseError as error:
        _log.warning("no calibrations: %s", error)
    return [entry.manifest for entry in found]


def _memory(config: EdgeConfig) -> Callable[[InForce], None]:
    """Where it is noted what an engine that is replaced should start with; a store has its slots for that."""
    run_dir = config.engine_socket.parent
    return (lambda last: remember(run_dir, last)) if config.store_dir is None else (lambda _last: None)


def _both_fit(calibrated: Calibrated, budget: int | None) -> Callable[[], bool]:
    """Whether free memory and the budget hold the largest release at both precisions, as far as can be told now."""

    def fit() -> bool:
        sizes = (sum(entry.bytes for entry in manifest.files) for manifest in calibrated.manifests)
        needed = 2 * max(sizes, default=0)
        return free_bytes() > needed and (budget is None or budget > needed)

    return fit


def _tls(config: EdgeConfig) -> ClientTls | None:
    if config.upstream_ca_file is None and config.upstream_certificate_file is None:
        return None
    return ClientTls(config.upstream_ca_file, config.upstream_certificate_file, config.upstream_key_file)


def _upstream_settings(config: EdgeConfig) -> UpstreamSettings:
    return UpstreamSettings(
        target=config.upstream,
        model=config.upstream_model,
        network=NetworkSettings(max_probe_bytes=max(config.probe_bytes, 1)),
        breaker=BreakerSettings(cooldown_s=1.0, max_cooldown_s=8.0),
        escalations_per_minute=config.escalations_per_minute,
    )


def _cascade_settings(config: EdgeConfig) -> CascadeSettings:
    return CascadeSettings(
        node=config.node,
        model=config.model,
        limits=RequestLimits(max_prompt_bytes=config.max_prompt_bytes, max_hops=config.max_hops),
        policy=Policy(
            directive_threshold=config.threshold,
            value_weight=config.value_weight,
            prefer_faster_upstream=config.prefer_faster_upstream,
        ),
        commit_rule=config.commit_rule,
        max_output_tokens=config.max_output_tokens,
        max_requests=config.max_requests,
        private_classes=frozenset(config.private_classes),
    )


def _precision_settings(config: EdgeConfig) -> PrecisionLoopSettings:
    plan = PrecisionSettings(
        pinned=None if config.precision == "auto" else int(config.precision),
        error_cost_s=config.error_cost_ms / 1e3,
        margin=config.precision_hysteresis,
        dwell_s=config.precision_dwell_s,
    )
    return PrecisionLoopSettings(config.precision_interval_s, plan)


def _http_settings(config: EdgeConfig) -> HttpSettings:
    return HttpSettings(
        config.default_deadline_s,
        config.max_deadline_s,
        config.max_body_bytes,
        f"prefix:{config.commit_prefix_tokens}",
    )


def run(config: EdgeConfig) -> int:
    """Blocks until a signal; returns the exit code."""
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(name)s %(levelname)s %(message)s")
    for noisy in ("grpc", "asyncio", "uvicorn", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    return asyncio.run(serve(config))
