"""A real gateway in front of a real engine host, with shared state in a file beside it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import httpx
import pytest

from cloud.state.open import open_store
from tests.integration.cloud_process import (
    START_S,
    Client,
    Host,
    ask,
    engine_host,
    free_port,
    running,
    soon,
    talkative_model,
)
from wire.description import Description
from wire.errors import NotFound, Unavailable, WeirError
from wire.grpc_client import EngineControlClient, InferenceClient
from wire.messages import Delta, Tier


@dataclass
class Gateway:
    address: str
    http: str
    store_url: str

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A client of the gateway; `control` is not served there."""
        client = Client(InferenceClient(self.address), EngineControlClient(self.address))
        try:
            await until_described(client, lambda description: description.ready)
            yield client
        finally:
            await client.inference.close()
            await client.control.close()


async def until_described(client: Client, holds: object) -> Description:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        try:
            description = await client.inference.describe(soon(5.0))
            if holds(description):  # type: ignore[operator]
                return description
        except WeirError:
            pass
        await asyncio.sleep(0.05)
    raise TimeoutError("the gateway did not come to say so")


@contextmanager
def gateway(engines: str, folder: Path, **settings: object) -> Iterator[Gateway]:
    folder.mkdir(parents=True, exist_ok=True)
    served = Gateway(
        f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}", f"sqlite:///{folder.resolve() / 'state.db'}"
    )
    everything = {
        "address": served.address,
        "http_address": served.http,
        "engines": engines,
        "store_url": served.store_url,
        "probe_interval_s": 0.1,
        **settings,
    }
    with running("cloud.gateway", "GATEWAY", everything, folder / "gateway.log"):
        yield served


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Host]]:
    folder = tmp_path_factory.mktemp("cloud")
    with (
        engine_host(talkative_model(folder / "model"), folder / "host", max_batch=2) as host,
        gateway(host.address, folder / "gateway") as served,
    ):
        yield served, host


async def test_a_question_is_answered_by_way_of_the_gateway(cloud: tuple[Gateway, Host]) -> None:
    async with cloud[0].client() as client:
        answer = await client.answer(ask(tokens=96, hops=1, model="an-edge-model"))
    assert answer.final.tier is Tier.CLOUD
    assert answer.final.usage.completion_tokens == 96
    assert answer.first_delta_s < answer.total_s / 2
    assert {"gateway_queue", "gateway_total", "host_queue", "engine_decode"} <= set(answer.final.timings_ms)
    assert answer.final.timings_ms["gateway_total"] <= answer.total_s * 1e3


async def test_leaving_the_gateway_frees_the_engine(cloud: tuple[Gateway, Host]) -> None:
    async with cloud[0].client() as client, cloud[1].client() as engine:
        events = client.inference.generate(ask(tokens=480), soon())
        async for event in events:
            if isinstance(event, Delta):
                break
        await events.aclose()
        await asyncio.sleep(0.3)
        status = await engine.status()
        assert status.active == 0
        await asyncio.sleep(0.2)
        assert (await engine.status()).decode_steps == status.decode_steps


async def test_an_unknown_model_is_not_found(cloud: tuple[Gateway, Host]) -> None:
    async with cloud[0].client() as client:
        with pytest.raises(NotFound, match="served are: tiny"):
            await client.answer(ask(model="other"))


async def test_fleet_is_named_and_not_served(cloud: tuple[Gateway, Host]) -> None:
    async with cloud[0].client(), grpc.aio.insecure_channel(cloud[0].address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/weir.v1.Fleet/Enroll")(b"", timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "Fleet.Enroll" in (caught.value.details() or "")


async def test_describe_follows_the_active_release(cloud: tuple[Gateway, Host]) -> None:
    store = open_store(cloud[0].store_url)
    try:
        async with cloud[0].client() as client:
            for release in ("small@1.0.0+aa", "small@1.1.0+bb"):
                await store.set("active/small", json.dumps({"release": release}).encode())
                began = time.monotonic()
                await until_described(client, lambda d, r=release: d.active_releases == {"small": r})  # type: ignore[misc]
                assert time.monotonic() - began < 5
    finally:
        await store.close()


async def test_http_says_whether_it_lives_and_whether_it_can_answer(cloud: tuple[Gateway, Host]) -> None:
    async with cloud[0].client(), httpx.AsyncClient(base_url=f"http://{cloud[0].http}") as http:
        assert (await http.get("/healthz")).json()["status"] == "ok"
        ready = await http.get("/readyz")
    assert (ready.status_code, ready.json()["models"]) == (200, ["tiny"])


async def test_without_engines_and_store_the_gateway_still_describes_itself(tmp_path: Path) -> None:
    with gateway("127.0.0.1:1", tmp_path, store_url="redis://127.0.0.1:1/0", probe_timeout_s=0.5) as served:
        client = Client(InferenceClient(served.address), EngineControlClient(served.address))
        try:
            description = await until_described(client, lambda d: "state store unreachable" in d.not_ready_reason)
            assert not description.ready
            assert "127.0.0.1:1 does not answer" in description.not_ready_reason
            with pytest.raises(Unavailable, match="no engine host has answered yet"):
                await client.answer(ask())
            async with httpx.AsyncClient() as http:
                assert (await http.get(f"http://{served.http}/readyz")).status_code == 503
        finally:
            await client.inference.close()
            await client.control.close()
