"""The demo's stage: engine host, gateway, link and edge node, each ready before an act begins.

    edge node ──link (a shaping proxy of the demo's own)──▶ gateway ──▶ engine host (two ranks)

Must not know: which questions are asked, what is made of the answers.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.link import Link, Rates, Shape
from runtime.cpu import native_bfloat16
from weir.client import AsyncClient
from weir.demo.errors import DemoError
from weir.demo.processes import Troupe, free_address
from weir.demo.watch import EventLog
from wire.deadline import Deadline
from wire.errors import WeirError
from wire.grpc_client import EngineControlClient, InferenceClient
from wire.messages import Tier
from wire.service import Call

WIDE = Shape(bytes_per_s=2_500_000, delay_s=0.005, jitter_s=0.002)
NARROW = Shape(bytes_per_s=1_200, delay_s=1.5, jitter_s=0.05)
_WIDE_PROBE_BYTES, _NARROW_PROBE_BYTES = 256 << 10, 8 << 10
RANKS = 2
ENGINE_START_S, START_S = 240.0, 90.0


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that runs, and how to reach it."""

    troupe: Troupe
    link: Link
    edge: AsyncClient
    gateway: AsyncClient
    engine: EngineControlClient
    events: EventLog

    async def precision(self) -> int:
        """The bits of the model the edge node serves now."""
        self.events.look()
        node = await self.edge.describe()
        return node.models[0].precision if node.models else 0

    async def cloud_ready(self) -> bool:
        """Whether the gateway has an engine that takes requests."""
        return await _serves(self.gateway)

    async def escalates(self) -> bool:
        """Whether the edge node gets an answer from the cloud."""
        try:
            answer = await self.edge.generate("Hello.", max_tokens=1, tier="cloud_only", deadline_s=20.0)
        except WeirError:
            return False
        return answer.tier is Tier.CLOUD

    async def kill_ranks(self) -> list[int]:
        """SIGKILLs every rank of the engine; returns their pids."""
        status = await self.engine.status(Call(Deadline.after(5.0)))
        pids = [rank.pid for rank in status.ranks]
        if not pids or any(pid <= 1 for pid in pids):
            raise DemoError(f"the engine names no ranks to kill: {status}")
        self.troupe.note_descendants()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return pids

    async def measure_link(self, *, narrow: bool) -> Rates:
        """Bytes a second of one transfer, counted at the link's sockets."""
        size = _NARROW_PROBE_BYTES if narrow else _WIDE_PROBE_BYTES
        probe = InferenceClient(self.link.address)
        try:
            await probe.describe(Call(Deadline.after(20.0)))  # connects
            before = self.link.count()
            await probe.describe(Call(Deadline.after(30.0)), probe_bytes=size)
            return self.link.count().since(before)
        finally:
            await probe.close()


@dataclass(frozen=True, slots=True)
class Props:
    """What is put on the stage. Settings are given to `serve` with --set."""

    release_dir: Path
    cloud_folder: Path
    cloud_name: str
    cloud_width: str = "float32"
    edge_settings: Mapping[str, object] = field(default_factory=dict)
    engine_settings: Mapping[str, object] = field(default_factory=dict)


@contextlib.asynccontextmanager
async def stage(props: Props, run_dir: Path) -> AsyncIterator[Scene]:
    """Starts everything and yields the scene; afterwards nothing of it is left."""
    engine, gateway, grpc = free_address(), free_address(), free_address()
    host, _, port = gateway.rpartition(":")
    async with contextlib.AsyncExitStack() as stack:
        troupe = await stack.enter_async_context(Troupe(run_dir))
        link = await stack.enter_async_context(Link(host, int(port), WIDE, seed=1))
        await troupe.start(
            "engine", "engine", "serve", "--model", str(props.cloud_folder), "--name", props.cloud_name,
            "--address", engine, "--tensor-parallel-size", str(RANKS), "--threads-per-rank", "1",
            "--precision", props.cloud_width, *_sets(props.engine_settings),
        )  # fmt: skip
        await troupe.start(
            "gateway", "cloud", "serve", "--engine", engine, "--address", gateway, "--http-address", free_address()
        )
        cloud = await stack.enter_async_context(AsyncClient(gateway))
        await troupe.until("loading the cloud's model", lambda: _serves(cloud), ENGINE_START_S)
        node = await troupe.start(
            "edge", "edge", "serve", "--releases-dir", str(props.release_dir), "--upstream", link.address,
            "--grpc-address", grpc, "--http-address", free_address(), "--threads", "1", *_sets(props.edge_settings),
        )  # fmt: skip
        scene = Scene(
            troupe,
            link,
            await stack.enter_async_context(AsyncClient(grpc)),
            cloud,
            EngineControlClient(engine),
            EventLog(node.log),
        )
        stack.push_async_callback(scene.engine.close)
        await troupe.until("starting the edge node", lambda: _serves(scene.edge), START_S)
        await troupe.until("the node's first escalation", scene.escalates, START_S)
        yield scene


def _sets(settings: Mapping[str, object]) -> list[str]:
    return [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]


def cloud_precision() -> str:
    """bfloat16 where the CPU multiplies it itself; elsewhere float32: twice the memory, a third of the time."""
    return "bfloat16" if native_bfloat16() else "float32"


async def _serves(client: AsyncClient) -> bool:
    try:
        node = await client.describe(deadline_s=2.0)
    except WeirError:
        return False
    return node.ready and bool(node.models)
