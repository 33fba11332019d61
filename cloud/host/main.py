"""The engine host process.

    python -m cloud.host [--config FILE]        ([engine] of the file, WEIR_ENGINE__… of the environment)

Refuses to start what can never run (a width that cannot be sharded, a folder without a model) with
exit status 2 and the reason. On SIGTERM or SIGINT it takes no new requests, finishes the running
ones within a bound, stops its ranks and ends with 0.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from cloud.config import EngineHostConfig
from cloud.engine import TRANSFORMERS
from cloud.host.service import HostService
from cloud.host.supervisor import RankGroup
from cloud.rank.folder import model_config
from cloud.rank.plan import PlanRefused, plan_sharding
from cloud.rank.spec import from_config
from wire.channel import bind, open_server
from wire.grpc_server import HealthReporter, add_engine_control, add_inference

_log = logging.getLogger("weir.host")

EXIT_REFUSED = 2
_SOCKET_PATH_LIMIT = 100  # the kernel's is 107 bytes


def run(config: EngineHostConfig) -> int:
    """Serves until a signal; returns the exit status."""
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(name)s %(message)s")
    try:
        plan = plan_sharding(
            model_config(config.model_dir), config.precision, config.tensor_parallel_size, TRANSFORMERS
        )
    except (PlanRefused, ValueError) as error:
        sys.stderr.write(f"engine host: {error}\n")
        return EXIT_REFUSED
    if plan.note:
        _log.warning("%s", plan.note)
    with ExitStack() as stack:
        run_dir = config.run_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-engine-")))
        run_dir.mkdir(parents=True, exist_ok=True)
        if len(str(run_dir.resolve())) > _SOCKET_PATH_LIMIT - len("/rank0.sock"):
            sys.stderr.write(f"engine host: run_dir {run_dir} is too long for a unix socket; choose a shorter one\n")
            return EXIT_REFUSED
        return asyncio.run(_serve(config, run_dir.resolve()))


async def _serve(config: EngineHostConfig, run_dir: Path) -> int:
    changed = asyncio.Event()
    ranks = RankGroup(from_config(config, run_dir), config.heartbeat_timeout_s, changed.set)
    service = HostService(config, ranks, changed.set)
    server = open_server()
    add_inference(server, service, config.default_deadline_s)
    add_engine_control(server, service, config.default_deadline_s)
    health = HealthReporter(server, ("Inference", "EngineControl"))
    try:
        bind(server, config.address)
    except OSError as error:
        sys.stderr.write(f"engine host: {error}\n")
        return EXIT_REFUSED
    await health.set(False)
    await server.start()
    stop = _stop_signal()
    group = asyncio.create_task(ranks.run())
    reporter = asyncio.create_task(_report(service, health, changed))
    try:
        await asyncio.wait([group, asyncio.create_task(stop.wait())], return_when=asyncio.FIRST_COMPLETED)
        left = await service.finish(config.drain_timeout_s)
        if left:
            _log.warning("%d requests were still running after %.0f s and are cut off", left, config.drain_timeout_s)
    finally:
        reporter.cancel()
        await server.stop(0.5)
        group.cancel()
        await asyncio.gather(group, reporter, return_exceptions=True)
    return 0


def _stop_signal() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def _report(service: HostService, health: HealthReporter, changed: asyncio.Event) -> None:
    while True:
        await changed.wait()
        changed.clear()
        await health.set(service.serving)
