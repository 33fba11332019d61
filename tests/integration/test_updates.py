"""A node that updates itself: real processes, a real signed repository, a real server with Range."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from release.manifest import PLANE_HI, PLANE_LO, Manifest
from tests.fakes.range_server import RangeServer
from tests.integration.edge_process import until
from tests.integration.store_node import Registry, StoreNode
from tests.unit.edge.test_updater_cuts import refetched

CHUNK = 8 << 10


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def registry(tmp_path: Path, tiny_release: Path) -> Registry:
    return Registry(tmp_path / "registry", tiny_release)


class Gate:
    """Slows one file of a release down until it is opened."""

    def __init__(self, manifest: Manifest, name: str, bytes_per_s: float = 3_000) -> None:
        self._sha256, self._bytes_per_s = manifest.file(name).sha256, bytes_per_s
        self.opened = False

    def __call__(self, path: str) -> float | None:
        return self._bytes_per_s if not self.opened and path.endswith(self._sha256) else None


def test_an_empty_node_answers_with_four_bits_and_then_with_eight(registry: Registry, tmp_path: Path) -> None:
    manifest = registry.publish("1.0.0")
    gate = Gate(manifest, PLANE_LO)
    with RangeServer(registry.repository, rate=gate).running() as server:
        with StoreNode(tmp_path / "node", registry, server.url) as node:
            ready = node.get("/readyz")
            assert ready.status_code == 503
            node.until(lambda: node.serves(manifest.id, 4))
            assert not (node.store / "releases" / manifest.id / PLANE_LO).exists()
            assert node.status()["fetching"]["part"] == "eight"
            node.until(lambda: node.slots().get("current") == manifest.id)
            gate.opened = True
            node.until(lambda: node.serves(manifest.id, 8))
            node.until(lambda: node.status()["fetching"] is None)
            status = node.status()
            assert (status["wanted"], status["held"]) == (manifest.id, {manifest.id: [4, 8]})
            assert status["catalogue_issued"]
            assert [event["part"] for event in node.events("TransferFinished")] == ["four", "eight"]
            moved = sum(asked.sent for asked in server.objects())
            assert moved == sum(entry.bytes for entry in manifest.files) + registry.manifest_bytes(manifest)
        # Offline it starts again with what it has.
        with StoreNode(tmp_path / "node", registry, "http://127.0.0.1:9") as node:
            node.until(lambda: node.serves(manifest.id, 8))
            node.until(lambda: "failed" in node.status()["problem"])


def test_a_release_that_is_no_good_gives_way_to_the_one_before(registry: Registry, tmp_path: Path) -> None:
    """One that the engine refuses, and one that the engine dies of: neither is tried again, another one is."""
    old = registry.publish("1.0.0")
    with (
        RangeServer(registry.repository).running() as server,
        StoreNode(tmp_path / "node", registry, server.url, precision="4") as node,
    ):
        node.until(lambda: node.slots().get("current") == old.id and node.serves(old.id, 4))
        refused = registry.publish("1.1.0", registry.broken("1.1.0"))
        node.until(lambda: refused.id in node.slots().get("bad", {}))
        assert node.serves(old.id, 4)
        (returned,) = node.events("ReleaseReturned")
        assert (returned["release"], returned["to"]) == (refused.id, old.id)
        node.until(lambda: node.status()["bad"].get(refused.id, "") != "" and node.status()["wanted"] == old.id)
        deadly, deaths = registry.publish("1.2.0"), 0

        def given_up() -> bool:
            """Kills every engine while that release is on trial, as the release would."""
            nonlocal deaths
            engine = node.child("engine")
            if engine is not None and node.slots().get("trial") == deadly.id:
                deaths += 1
                engine.kill()
                node.until(lambda: not engine.is_running() or engine.status() == "zombie")
            return deadly.id in node.slots().get("bad", {})

        node.until(given_up)
        node.until(lambda: node.serves(old.id, 4))
        assert "crashed" in node.slots()["bad"][deadly.id]
        assert deaths >= 2
        assert node.events("ReleaseReturned")[-1]["to"] == old.id
        better = registry.publish("1.3.0")
        node.until(lambda: node.slots().get("current") == better.id and node.serves(better.id, 4))
        node.wait_gone(refused.id)
        assert node.slots()["previous"] == old.id
        assert len(node.events("ReleaseOffered")) == 3


def test_a_file_that_rots_on_disk_is_fetched_again(registry: Registry, tmp_path: Path) -> None:
    manifest = registry.publish("1.0.0")
    with RangeServer(registry.repository).running() as server:
        with StoreNode(tmp_path / "node", registry, server.url) as node:
            node.until(lambda: node.serves(manifest.id, 8))
            file = node.store / "releases" / manifest.id / PLANE_HI
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.chmod(0o644)
        file.write_bytes(content)
        with StoreNode(tmp_path / "node", registry, server.url) as node:
            node.until(lambda: node.serves(manifest.id, 8))
            assert node.events("FilesDamaged")[0]["files"] == PLANE_HI
            assert not node.slots()["bad"]


def test_killed_at_random_offsets_of_a_download_the_node_completes(registry: Registry, tmp_path: Path) -> None:
    """kill -9 of launcher, front and engine together; bytes are counted at the server."""
    manifest = registry.publish("1.0.0", chunk_bytes=CHUNK)
    kills = int(os.environ.get("WEIR_TEST_KILLS", "4"))
    total = sum(entry.bytes for entry in manifest.files)
    rng = random.Random(11)
    offsets = sorted(rng.randrange(1, total) for _ in range(kills))
    had: dict[str, int] = {}
    most = 0
    with RangeServer(
        registry.repository, rate=lambda path: 150_000 if "/objects/" in path else None
    ).running() as server:
        for offset in offsets:
            since = len(server.asked)
            node = StoreNode(tmp_path / "node", registry, server.url).start(wait=False)
            node.until(lambda at=offset: sum(one.sent for one in server.objects()) >= at)  # type: ignore[misc]
            node.kill()
            most = max(most, refetched(server, since, had))
        since = len(server.asked)
        with StoreNode(tmp_path / "node", registry, server.url) as node:
            node.until(lambda: node.serves(manifest.id, 8))
        most = max(most, refetched(server, since, had))
    assert most <= CHUNK


def test_an_old_state_replayed_changes_nothing(registry: Registry, tmp_path: Path) -> None:
    old = registry.publish("1.0.0")
    replay = tmp_path / "replay"
    shutil.copytree(registry.repository, replay)
    new = registry.publish("2.0.0")
    with (
        RangeServer(registry.repository).running() as server,
        StoreNode(tmp_path / "node", registry, server.url) as node,
    ):
        node.until(lambda: node.slots().get("current") == new.id)
        server.root = replay
        node.until(lambda: bool(node.events("CatalogueRefused")))
        assert node.events("CatalogueRefused")[-1]["error"] == "Replayed"
        assert node.serves(new.id)
        assert node.status()["wanted"] == new.id != old.id


def test_a_sibling_gives_what_it_has(registry: Registry, tmp_path: Path) -> None:
    """With the repository out of reach a node lives on its sibling alone, metadata and all."""
    manifest = registry.publish("1.0.0")
    with StoreNode(tmp_path / "one", registry, str(registry.repository), share_store="true") as one:
        one.until(lambda: one.serves(manifest.id, 8))
        sibling = f"{one.http}/repository"
        with StoreNode(tmp_path / "two", registry, "http://127.0.0.1:9", siblings=sibling) as two:
            two.until(lambda: two.serves(manifest.id, 8))


def test_two_nodes_do_not_share_a_store(registry: Registry, tmp_path: Path) -> None:
    registry.publish("1.0.0")
    with StoreNode(tmp_path / "node", registry, str(registry.repository)) as node:
        other = StoreNode(tmp_path / "other", registry, str(registry.repository), store_dir=node.store)
        other.start(wait=False)
        until(lambda: other.ended() == 1, 30, lambda: other.log)
        assert "another node" in other.log
