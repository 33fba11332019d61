"""The admin API over real sockets, on both stores; and the process itself."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from cloud.admin.main import AdminServer
from cloud.config import AdminConfig
from cloud.state.base import StateStore
from cloud.state.open import open_store
from cloud.state.sqlite import SqliteStateStore
from tests.fakes.releases import write_release
from tests.redis_server import RedisServer, require_redis

TOKEN = secrets.token_urlsafe(24)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    require_redis()
    server = RedisServer(tmp_path_factory.mktemp("redis"), append_only=False)
    server.start()
    yield server
    server.stop()


@asynccontextmanager
async def serving(store: StateStore, releases_dir: Path) -> AsyncIterator[httpx.AsyncClient]:
    config = AdminConfig(address="127.0.0.1:0", token=TOKEN, releases_dir=releases_dir)  # type: ignore[arg-type]
    server = AdminServer(config, store)
    await server.start()
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(base_url=f"http://{server.address}", headers=headers, timeout=10) as client:
        yield client
    await server.stop()


@pytest.fixture(params=["sqlite", "redis"])
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/state.db"
    else:
        url = f"{request.getfixturevalue('redis_server').url}?namespace=admin-{secrets.token_hex(4)}"
    async with serving(open_store(url), tmp_path / "releases") as client:
        yield client


async def register(client: httpx.AsyncClient, tmp_path: Path, version: str) -> str:
    write_release(tmp_path / "releases" / f"tiny-{version}", "tiny", version)
    answer = await client.post("/v1/releases", json={"folder": f"tiny-{version}"})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def fault(answer: httpx.Response) -> tuple[int, str]:
    document = answer.json()
    assert set(document) == {"error"} and document["error"]["message"]
    return answer.status_code, document["error"]["type"]


async def test_from_a_folder_to_the_active_release_and_on_to_the_next(
    client: httpx.AsyncClient, tmp_path: Path
) -> None:
    one, two = await register(client, tmp_path, "1.0.0"), await register(client, tmp_path, "2.0.0")
    listed = (await client.get("/v1/releases")).json()
    assert [release["id"] for release in listed["releases"]] == sorted([one, two])
    assert fault(await client.get("/v1/models/tiny/active")) == (404, "NotFound")

    first = await client.put("/v1/models/tiny/active", json={"release": one, "expected": 0, "by": "anna"})
    assert first.status_code == 200
    assert (first.json()["release"], first.json()["by"]) == (one, "anna")
    assert first.headers["etag"] == f'"{first.json()["version"]}"'

    second = await client.put(
        "/v1/models/tiny/active", json={"release": two}, headers={"if-match": first.headers["etag"]}
    )
    assert second.json()["release"] == two
    model = (await client.get("/v1/releases/tiny")).json()
    assert model["active"] == second.json() == (await client.get("/v1/models/tiny/active")).json()
    assert len(model["releases"]) == 2


async def test_whoever_changes_on_an_old_version_gets_409_and_the_current_one(
    client: httpx.AsyncClient, tmp_path: Path
) -> None:
    one, two = await register(client, tmp_path, "1.0.0"), await register(client, tmp_path, "2.0.0")
    now = (await client.put("/v1/models/tiny/active", json={"release": one})).json()["version"]
    for stale in ({"expected": 0}, {"expected": now - 1}):
        answer = await client.put("/v1/models/tiny/active", json={"release": two, **stale})
        assert fault(answer) == (409, "Conflict")
        assert answer.json()["error"]["current"] == now
    answer = await client.put("/v1/models/tiny/active", json={"release": two}, headers={"if-match": f'"{now - 1}"'})
    assert fault(answer) == (409, "Conflict")
    racing = await asyncio.gather(
        *(client.put("/v1/models/tiny/active", json={"release": two, "expected": now, "by": f"r{n}"}) for n in range(5))
    )
    assert sorted(answer.status_code for answer in racing) == [200, 409, 409, 409, 409]


async def test_unknown_things_are_404(client: httpx.AsyncClient, tmp_path: Path) -> None:
    await register(client, tmp_path, "1.0.0")
    unknown = {"release": "tiny@9.9.9+000000000000"}
    assert fault(await client.put("/v1/models/tiny/active", json=unknown)) == (404, "NotFound")
    assert fault(await client.put("/v1/models/other/active", json=unknown)) == (404, "NotFound")
    assert fault(await client.get("/v1/releases/other")) == (404, "NotFound")
    assert fault(await client.post("/v1/releases", json={"folder": "missing"})) == (404, "NotFound")
    assert fault(await client.get("/v2/anything")) == (404, "NotFound")
    assert fault(await client.delete("/v1/releases")) == (405, "InvalidRequest")


async def test_without_the_token_only_liveness_and_the_description_answer(
    client: httpx.AsyncClient, tmp_path: Path
) -> None:
    async with httpx.AsyncClient(base_url=client.base_url) as stranger:
        assert (await stranger.get("/healthz")).json() == {"status": "ok"}
        assert (await stranger.get("/openapi.json")).status_code == 200
        for given in (
            None,
            TOKEN,
            f"Basic {TOKEN}",
            "Bearer",
            f"Bearer {TOKEN}x",
            f"Bearer {TOKEN[:-1]}",
            "Bearer ü",
        ):
            headers = {} if given is None else {"authorization": given.encode()}
            for method, path in (("GET", "/v1/releases"), ("PUT", "/v1/models/tiny/active"), ("GET", "/nowhere")):
                answer = await stranger.request(method, path, headers=headers, content=b"{not json")
                assert fault(answer) == (401, "Unauthenticated"), given
                assert answer.headers["www-authenticate"] == "Bearer"
                assert TOKEN not in answer.text


async def test_a_folder_name_never_leaves_the_releases_folder(client: httpx.AsyncClient, tmp_path: Path) -> None:
    (tmp_path / "releases").mkdir()
    write_release(tmp_path / "outside", "outside")
    (tmp_path / "releases" / "link").symlink_to(tmp_path / "outside")
    for name in ("../outside", "..", ".", "/etc", str(tmp_path / "outside"), "a/../../outside", "link", "a\x00b", ""):
        assert fault(await client.post("/v1/releases", json={"folder": name})) == (400, "InvalidRequest"), name


async def test_bad_bodies_are_400_or_413_and_disturb_nobody(client: httpx.AsyncClient, tmp_path: Path) -> None:
    release = await register(client, tmp_path, "1.0.0")
    for content in (
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 30_000,
        b'{"release": 1}',
        b'{"release": "x", "extra": 1}',
    ):
        answer = await client.put(
            "/v1/models/tiny/active", content=content, headers={"content-type": "application/json"}
        )
        assert fault(answer) == (400, "InvalidRequest"), content[:20]
    for field in ({"expected": -1}, {"expected": "x"}, {"by": ""}, {"by": "x" * 200}):
        answer = await client.put("/v1/models/tiny/active", json={"release": release, **field})
        assert fault(answer) == (400, "InvalidRequest"), field
    answer = await client.put("/v1/models/tiny/active", json={"release": release}, headers={"if-match": "latest"})
    assert fault(answer) == (400, "InvalidRequest")
    assert fault(await client.post("/v1/releases", content=bytes(70_000))) == (413, "TooLarge")
    assert fault(await client.get("/v1/models/" + "m" * 600 + "/active")) == (400, "InvalidRequest")
    assert fault(await client.get("/v1/releases?limit=0")) == (400, "InvalidRequest")
    assert (await client.put("/v1/models/tiny/active", json={"release": release})).status_code == 200


async def test_a_damaged_release_is_refused_and_stays_unknown(client: httpx.AsyncClient, tmp_path: Path) -> None:
    folder = tmp_path / "releases" / "tiny-1.0.0"
    write_release(folder)
    (folder / "plane.hi.bin").write_bytes(b"something else")
    answer = await client.post("/v1/releases", json={"folder": "tiny-1.0.0"})
    assert fault(answer) == (412, "PreconditionFailed")
    assert "plane.hi.bin" in answer.json()["error"]["message"]
    assert str(tmp_path) not in answer.json()["error"]["message"]
    assert (await client.get("/v1/releases")).json()["releases"] == []


async def test_the_description_names_every_route_its_faults_and_the_token(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    assert set(document["paths"]) == {
        "/healthz",
        "/v1/health",
        "/v1/releases",
        "/v1/releases/{model}",
        "/v1/models/{model}/active",
    }
    put = document["paths"]["/v1/models/{model}/active"]["put"]
    assert {"200", "401", "404", "409", "503"} <= set(put["responses"])
    assert put["security"] and "422" not in put["responses"]


async def test_health_tells_which_store_answers(client: httpx.AsyncClient, request: pytest.FixtureRequest) -> None:
    health = (await client.get("/v1/health")).json()
    assert health["status"] == "ok"
    assert health["store"]["kind"] in request.node.name
    assert health["store"]["answered_in_ms"] >= 0


async def test_a_dead_redis_is_503_at_once_and_service_comes_back(tmp_path: Path) -> None:
    require_redis()
    redis = RedisServer(tmp_path)
    redis.start()
    try:
        async with serving(open_store(redis.url), tmp_path / "releases") as client:
            release = await register(client, tmp_path, "1.0.0")
            redis.kill()
            for method, path in (("GET", "/v1/health"), ("GET", "/v1/releases"), ("GET", "/v1/models/tiny/active")):
                began = time.monotonic()
                answer = await client.request(method, path)
                assert fault(answer) == (503, "Unavailable")
                assert answer.headers["retry-after"] == "1"
                assert time.monotonic() - began < 2
            assert fault(await client.put("/v1/models/tiny/active", json={"release": release}))[0] == 503
            assert (await client.get("/healthz")).status_code == 200
            redis.start()
            assert (await client.put("/v1/models/tiny/active", json={"release": release})).status_code == 200
    finally:
        redis.stop()


async def test_a_state_file_that_cannot_be_opened_is_503(tmp_path: Path) -> None:
    async with serving(SqliteStateStore(tmp_path / "missing" / "state.db"), tmp_path) as client:
        assert fault(await client.get("/v1/health")) == (503, "Unavailable")


# The process


def environment(**settings: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("WEIR_")}
    return {**kept, **{f"WEIR_ADMIN__{key.upper()}": value for key, value in settings.items()}}


async def start(tmp_path: Path, **settings: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "cloud.admin"),
        cwd=ROOT,
        env=environment(store_url=f"sqlite:///{tmp_path}/state.db", **settings),
        stderr=asyncio.subprocess.PIPE,
    )


async def test_the_process_serves_and_ends_cleanly_on_sigterm(tmp_path: Path, unused_tcp_port: int) -> None:
    process = await start(tmp_path, token=TOKEN, address=f"127.0.0.1:{unused_tcp_port}")
    async with asyncio.timeout(30), httpx.AsyncClient(base_url=f"http://127.0.0.1:{unused_tcp_port}") as client:
        while True:
            try:
                assert (await client.get("/healthz")).status_code == 200
                break
            except httpx.ConnectError:
                assert process.returncode is None
                await asyncio.sleep(0.05)
        health = await client.get("/v1/health", headers={"authorization": f"Bearer {TOKEN}"})
        assert health.json()["store"]["kind"] == "sqlite"
        process.send_signal(signal.SIGTERM)
        _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    assert TOKEN not in errors.decode()


@pytest.mark.parametrize(
    "settings", [{}, {"token": ""}, {"token": "short-secret"}, {"token": "spaces in it are not fine"}]
)
async def test_without_a_fit_token_it_does_not_start(tmp_path: Path, settings: dict[str, str]) -> None:
    process = await start(tmp_path, **settings)
    async with asyncio.timeout(30):
        _, errors = await process.communicate()
    assert process.returncode == 2
    assert "token" in errors.decode()
    assert not settings.get("token") or settings["token"] not in errors.decode()


async def test_a_taken_address_ends_it_with_a_message(tmp_path: Path) -> None:
    taken = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    address = f"127.0.0.1:{taken.sockets[0].getsockname()[1]}"
    process = await start(tmp_path, token=TOKEN, address=address)
    async with asyncio.timeout(30):
        _, errors = await process.communicate()
    taken.close()
    assert process.returncode == 1
    assert address in errors.decode()
