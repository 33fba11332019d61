"""An admin makes another release active, the gateway announces it, the edge follows: all as processes.

No engine runs: which release an edge should serve does not depend on whether the cloud can answer now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx

from cloud.releases import activate, register, summary
from cloud.state.open import open_store
from release.listing import read_manifest
from tests.integration.cloud_process import ask, free_port, running, soon
from tests.integration.edge_process import calibrated_release, edge_process
from tests.redis_server import RedisServer, require_redis
from wire.errors import WeirError
from wire.grpc_client import InferenceClient
from wire.messages import Final

TOKEN = "a-token-for-this-test"
_NOW = datetime(2026, 1, 1, tzinfo=UTC)


@contextmanager
def gateway(store_url: str, log: Path) -> Iterator[str]:
    address, http = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    settings: dict[str, object] = {"address": address, "http_address": http, "store_url": store_url}
    with running("cloud.gateway", "GATEWAY", settings, log):
        yield address


async def announced(address: str) -> dict[str, str]:
    """What the gateway says edges should serve; empty while it does not answer."""
    client = InferenceClient(address)
    try:
        return dict((await client.describe(soon(2.0))).active_releases)
    except WeirError:
        return {}
    finally:
        await client.close()


async def until_announced(address: str, wanted: dict[str, str], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while await announced(address) != wanted:
            await asyncio.sleep(0.1)


async def until_answering(admin: httpx.AsyncClient) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                if (await admin.get("/v1/health")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.1)


async def served_by(address: str) -> Final:
    client = InferenceClient(address)
    try:
        events = [event async for event in client.generate(ask(tokens=4), soon(30.0))]
    finally:
        await client.close()
    final = events[-1]
    assert isinstance(final, Final)
    return final


async def test_the_edge_serves_what_the_admin_makes_active(tiny_release: Path, tmp_path: Path) -> None:
    root = tmp_path / "releases"
    old = calibrated_release(tiny_release, root / "old", "1.0.0", 5.0)
    new = calibrated_release(tiny_release, root / "new", "2.0.0", 5.0)
    store_url = f"sqlite:///{tmp_path}/state.db"
    port = free_port()
    settings: dict[str, object] = {
        "address": f"127.0.0.1:{port}", "token": TOKEN, "store_url": store_url, "releases_dir": root,
    }  # fmt: skip
    bearer = {"authorization": f"Bearer {TOKEN}"}
    with (
        running("cloud.admin", "ADMIN", settings, tmp_path / "admin.log"),
        gateway(store_url, tmp_path / "gateway.log") as upstream,
        edge_process(root, upstream=upstream, probe_interval_s=0.2, precision="4") as edge,
    ):
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=bearer, timeout=10) as admin:
            await until_answering(admin)
            assert (await served_by(edge.grpc)).release == new.id, "with nothing active a node starts with the newest"
            for folder, manifest in (("old", old), ("new", new)):
                answer = await admin.post("/v1/releases", json={"folder": folder})
                assert answer.json()["id"] == manifest.id, answer.text
            version = 0
            digests = set()
            for wanted in (old, new):
                change = {"release": wanted.id, "expected": version}
                answer = await admin.put(f"/v1/models/{wanted.name}/active", json=change)
                assert answer.status_code == 200, answer.text
                version = answer.json()["version"]
                await until_announced(upstream, {wanted.name: wanted.id})
                await asyncio.to_thread(edge.wait_ready, None, wanted.id)
                final = await served_by(edge.grpc)
                assert final.release == wanted.id
                digests.add(final.weight_digest)
            assert digests and all(digests)


async def test_a_gateway_keeps_announcing_while_redis_is_away(tmp_path: Path, tiny_release: Path) -> None:
    require_redis()
    redis = RedisServer(tmp_path)
    redis.start()
    try:
        store = open_store(redis.url)
        manifest = read_manifest(tiny_release)
        known = await register(store, summary(manifest, "tiny", _NOW))
        await activate(store, known.model, known.id, by="test", now=_NOW)
        with gateway(redis.url, tmp_path / "gateway.log") as address:
            await until_announced(address, {known.model: known.id})
            redis.kill()
            for _ in range(20):
                assert await announced(address) == {known.model: known.id}
                await asyncio.sleep(0.1)
            redis.start()
            other = await register(store, known.model_copy(update={"id": f"{known.model}@9.0.0+000000000000"}))
            await activate(store, known.model, other.id, by="test", now=_NOW)
            await until_announced(address, {known.model: other.id})
        await store.close()
    finally:
        redis.stop()
