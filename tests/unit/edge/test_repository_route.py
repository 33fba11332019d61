"""A node's store as a sibling's source: verified metadata and objects, and nothing else of the store."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import httpx

from edge.http.app import make_app
from edge.http.repository import add_repository
from edge.http.settings import HttpSettings
from release.trust.client import TrustClient
from runtime.http_server import HttpServer
from tests.fakes.disk import QuickDisk
from tests.fakes.inference import FakeInference
from tests.fakes.repository import Site
from weir.cli.desk import HttpSource


async def test_a_sibling_verifies_a_node_as_any_source(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.publish()
    store = tmp_path / "store"
    first = TrustClient(store / "trust", site.first_root, QuickDisk())
    offer = first.refresh(site.source(), site.now).offers[0]
    (store / offer.path).parent.mkdir(parents=True)
    (store / offer.path).write_bytes((site.repository / offer.path).read_bytes())
    (store / "partial").mkdir()
    (store / "partial" / ("0" * 64)).write_bytes(b"half")
    (store / "slots.json").write_bytes(b"{}")

    app = make_app(FakeInference(), HttpSettings())
    add_repository(app, store)
    server = HttpServer(app, "127.0.0.1:0")
    await server.start()
    url = f"http://{server.address}/repository"

    def second() -> bytes:
        with closing(HttpSource(url)) as source:
            found = TrustClient(tmp_path / "second", site.first_root, QuickDisk()).refresh(source, site.now).offers[0]
            return source(found.path, found.bytes)

    assert offer.manifest(await asyncio.to_thread(second)).id == offer.release
    async with httpx.AsyncClient() as client:
        for path in ("slots.json", f"partial/{'0' * 64}", "trust/seen.json", "metadata/seen.json", "releases/"):
            assert (await client.get(f"{url}/{path}")).status_code == 404, path
        assert (await client.get(f"http://{server.address}/healthz")).status_code == 200
    await server.stop()
