"""The front process alone, between a slow fake engine on its socket and a fake cloud on a port."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import httpx

from edge.config import EdgeConfig
from tests.fakes.inference import FakeInference
from tests.fakes.node import cloud, engine
from wire.channel import bind, open_server
from wire.deadline import Deadline
from wire.grpc_client import InferenceClient
from wire.grpc_server import add_inference
from wire.messages import Constraints, GenerateRequest, Message, TierConstraint
from wire.service import Call

STEP_S = 0.05


@asynccontextmanager
async def serving(service: FakeInference, address: str) -> AsyncIterator[str]:
    server: grpc.aio.Server = open_server()
    add_inference(server, service, 30.0)
    port = bind(server, address)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@asynccontextmanager
async def fronting(upstream: str) -> AsyncIterator[tuple[dict[str, str], Path]]:
    """A front process in a fresh run_dir; yields its addresses once it heard its engine."""
    with tempfile.TemporaryDirectory(prefix="weir-test-", ignore_cleanup_errors=True) as folder:
        run_dir = Path(folder)
        config = EdgeConfig(
            releases_dir=run_dir,
            run_dir=run_dir,
            http_address="127.0.0.1:0",
            grpc_address="127.0.0.1:0",
            upstream=upstream,
            probe_interval_s=0.2,
        )
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "edge.front", config.to_json())
        try:
            for _ in range(600):
                if (run_dir / "front.json").exists():
                    break
                assert process.returncode is None
                await asyncio.sleep(0.05)
            yield json.loads((run_dir / "front.json").read_text()), run_dir
        finally:
            process.terminate()
            assert await asyncio.wait_for(process.wait(), 15) == 0


@asynccontextmanager
async def between(
    local: FakeInference, above: FakeInference
) -> AsyncIterator[tuple[dict[str, str], httpx.AsyncClient]]:
    """A front that knows both tiers; yields its addresses and a client of its HTTP side."""
    async with (
        serving(above, "127.0.0.1:0") as upstream,
        fronting(upstream) as (addresses, run_dir),
        serving(local, f"unix:{run_dir}/engine.sock"),
        httpx.AsyncClient(base_url=f"http://{addresses['http']}", timeout=30, trust_env=False) as http,
    ):
        while not (await http.get("/v1/models")).json()["data"]:
            await asyncio.sleep(0.05)
        yield addresses, http


async def until(condition: object, seconds: float = 15.0) -> None:
    assert callable(condition)
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_client_that_leaves_frees_its_slot_at_both_tiers_within_a_step() -> None:
    local, above = engine(), cloud()
    local.step_s = above.step_s = STEP_S
    local.hang = above.hang = True
    async with between(local, above) as (addresses, http):
        client = InferenceClient(addresses["grpc"])
        for asker, stream, (service, constraint) in itertools.product(
            (http, client), (False, True), ((local, "edge_only"), (above, "cloud_only"))
        ):
            asking = asyncio.create_task(_ask(asker, constraint, stream))
            await until(lambda service=service: service.slots_used == 1)
            await asyncio.sleep(3 * STEP_S)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            left = asyncio.get_running_loop().time()
            await until(lambda service=service: service.slots_used == 0)
            # A hung answer never ends by itself. The bound is a step and what a busy machine adds.
            assert asyncio.get_running_loop().time() - left < 10 * STEP_S
        await client.close()
    assert (local.left, above.left, local.finished, above.finished) == (4, 4, 0, 0)


async def _ask(client: httpx.AsyncClient | InferenceClient, constraint: str, stream: bool) -> None:
    if isinstance(client, InferenceClient):
        constraints = Constraints(TierConstraint(constraint), commit_rule="prefix:2" if stream else "end")
        request = GenerateRequest(messages=(Message("user", "hi"),), constraints=constraints)
        async for _ in client.generate(request, Call(Deadline.after(30))):
            pass
        return
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": stream,
        "weir": {"constraint": constraint},
    }
    await client.post("/v1/chat/completions", json=body)


async def test_streams_flow_through_both_tiers_as_they_are_written() -> None:
    local, above = engine(words=tuple(f" e{n}" for n in range(24))), cloud()
    above.words = tuple(f" c{n}" for n in range(20))
    local.step_s = above.step_s = STEP_S
    async with between(local, above) as (_, http):
        # The eight tokens before the commit point come as one piece, the others one by one.
        for constraint, pieces in (("cloud_only", 20), ("edge_only", 1 + 24 - 8)):
            arrivals = await _arrivals(http, constraint)
            assert len(arrivals) == pieces
            assert arrivals[0] < arrivals[-1] / 2


async def _arrivals(http: httpx.AsyncClient, constraint: str) -> list[float]:
    loop = asyncio.get_running_loop()
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "weir": {"constraint": constraint},
    }
    began, arrivals = loop.time(), []
    async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            arrivals += [loop.time() - began] if '"content":" ' in line else []
    return arrivals
