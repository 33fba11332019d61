"""The gateway process.

    python -m cloud.gateway [--config FILE]     ([gateway] of the file, WEIR_GATEWAY__… of the environment)

On SIGTERM or SIGINT it says so in its health, takes no new requests, gives the running ones a moment
and ends with 0. A port that is taken or a store_url that cannot be read ends it with status 2.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from cloud.config import GatewayConfig
from cloud.gateway.active import ActiveReleases
from cloud.gateway.http import build_app
from cloud.gateway.pool import EngineLink, EnginePool
from cloud.gateway.service import GatewayService
from cloud.state.open import open_store
from runtime.config import ConfigError
from runtime.http_server import HttpServer
from wire.channel import bind, open_server
from wire.grpc_client import EngineControlClient, InferenceClient
from wire.grpc_server import HealthReporter, add_inference, add_unserved_fleet

EXIT_REFUSED = 2
_HEALTH_INTERVAL_S = 0.25
_FINISH_S = 5.0


def run(config: GatewayConfig) -> int:
    """Serves until a signal; returns the exit status."""
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(name)s %(message)s")
    try:
        return asyncio.run(_serve(config))
    except (ConfigError, OSError) as error:
        sys.stderr.write(f"gateway: {error}\n")
        return EXIT_REFUSED


async def _serve(config: GatewayConfig) -> int:
    clients = [(InferenceClient(target), EngineControlClient(target)) for target in config.engines]
    links = [EngineLink(inference.target, inference, control) for inference, control in clients]
    pool = EnginePool(links, config.probe_interval_s, config.probe_timeout_s, config.stale_after_s)
    active = ActiveReleases(open_store(config.store_url) if config.store_url else None)
    service = GatewayService(config, pool, active)
    server = open_server()
    add_inference(server, service, config.default_deadline_s)
    add_unserved_fleet(server)
    health = HealthReporter(server, ("Inference", "Fleet"))
    http = HttpServer(build_app(service, config.node, config.repository_dir), config.http_address)
    try:
        bind(server, config.address)
        await health.set(False)
        await server.start()
        await http.start()
        await _until_stopped(service, pool, active, health, http)
        await server.stop(_FINISH_S)
    finally:
        await http.stop()
        await active.close()
        for inference, control in clients:
            await inference.close()
            await control.close()
    return 0


async def _until_stopped(
    service: GatewayService,
    pool: EnginePool,
    active: ActiveReleases,
    health: HealthReporter,
    http: HttpServer,
) -> None:
    """Runs everything until a signal comes. A part that fails ends the gateway with its error."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    work = [
        asyncio.create_task(pool.run(), name="pool"),
        asyncio.create_task(active.run(), name="active"),
        asyncio.create_task(_report(pool, health), name="health"),
        asyncio.create_task(http.wait(), name="http"),
    ]
    stopped = asyncio.create_task(stop.wait())
    try:
        waiting = {stopped, *work}
        while not stopped.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        service.drain()
        await health.set(False)
        for task in (*work, stopped):
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)


async def _report(pool: EnginePool, health: HealthReporter) -> None:
    said: bool | None = None
    while True:
        if pool.ready is not said:
            said = pool.ready
            await health.set(said)
        await asyncio.sleep(_HEALTH_INTERVAL_S)
