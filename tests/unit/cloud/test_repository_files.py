"""The gateway serves a repository, and nothing beside it, over a real socket with Range."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from cloud.gateway.http import build_app
from runtime.http_server import HttpServer
from tests.fakes.inference import FakeInference
from tests.fakes.repository import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.publish(shared=b"0123456789" * 100)
    return made


@pytest.fixture
async def url(site: Site) -> AsyncIterator[str]:
    server = HttpServer(build_app(FakeInference(), "gateway", site.repository), "127.0.0.1:0")
    await server.start()
    yield f"http://{server.address}"
    await server.stop()


SHARED = hashlib.sha256(b"0123456789" * 100).hexdigest()


async def test_metadata_and_objects_are_served(site: Site, url: str) -> None:
    async with httpx.AsyncClient(base_url=url) as client:
        timestamp = await client.get("/repository/metadata/timestamp.json")
        assert timestamp.content == (site.repository / "metadata" / "timestamp.json").read_bytes()
        assert timestamp.headers["cache-control"] == "no-cache"
        whole = await client.get(f"/repository/objects/{SHARED[:2]}/{SHARED}")
        assert hashlib.sha256(whole.content).hexdigest() == SHARED
        assert "immutable" in whole.headers["cache-control"]
        head = await client.head(f"/repository/objects/{SHARED[:2]}/{SHARED}")
        assert (head.status_code, head.headers["content-length"], head.content) == (200, "1000", b"")


async def test_a_range_is_a_range(url: str) -> None:
    async with httpx.AsyncClient(base_url=url) as client:
        path = f"/repository/objects/{SHARED[:2]}/{SHARED}"
        middle = await client.get(path, headers={"Range": "bytes=995-"})
        assert (middle.status_code, middle.content) == (206, b"56789")
        assert middle.headers["content-range"] == "bytes 995-999/1000"
        assert (await client.get(path, headers={"Range": "bytes=1000-"})).status_code == 416


@pytest.mark.parametrize(
    "path",
    [
        "/repository/.lock",
        "/repository/metadata/",
        "/repository/metadata/../../keys/signed.json",
        "/repository/metadata/..%2f..%2fkeys%2fsigned.json",
        "/repository/objects/../../keys/signed.json",
        "/repository/%2e%2e/keys/signed.json",
        "/repository//etc/passwd",
        "/repository/objects/00/../../metadata/timestamp.json",
        f"/repository/objects/00/{'1' * 64}",
        "/repository/metadata/9.root.json",
    ],
)
async def test_no_other_path_leads_anywhere(url: str, path: str) -> None:
    """As sent: httpx would tidy the path up first."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)

    def ask() -> tuple[int, bytes]:
        connection.putrequest("GET", path, skip_host=False)
        connection.endheaders()
        response = connection.getresponse()
        return response.status, response.read()

    status, body = await asyncio.to_thread(ask)
    connection.close()
    assert status == 404
    assert b'"signed"' not in body


async def test_a_link_out_of_the_folder_is_not_followed(site: Site, url: str) -> None:
    (site.repository / "metadata" / "77.root.json").symlink_to(site.folder / "keys" / "signed.json")
    async with httpx.AsyncClient(base_url=url) as client:
        assert (await client.get("/repository/metadata/77.root.json")).status_code == 404


async def test_nothing_is_served_where_no_folder_is_named() -> None:
    server = HttpServer(build_app(FakeInference(), "gateway"), "127.0.0.1:0")
    await server.start()
    async with httpx.AsyncClient(base_url=f"http://{server.address}") as client:
        assert (await client.get("/repository/metadata/timestamp.json")).status_code == 404
    await server.stop()
