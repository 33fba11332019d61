"""A node that updates itself: real processes, a real signed repository, a real server with Range."""

from __future__ import annotations

from pathlib import Path

import pytest

from release.manifest import PLANE_LO, Manifest
from tests.fakes.range_server import RangeServer
from tests.integration.store_node import Registry, StoreNode


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
            assert "failed" in node.status()["problem"]
