"""Several models kept up to date by one node over one store: each with its slots, none clearing another's files."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from edge.slot_file import SlotFile
from release.listing import read_manifest
from release.manifest import PLANE_LO
from release.repository.publish import publish
from release.store import Store
from release.trust.catalogue import Offer
from tests.fakes.small_chunks import in_small_chunks
from tests.integration.classifier_process import tiny_classifier
from tests.integration.store_node import Registry, StoreNode


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def releases(node: StoreNode) -> dict[str, str]:
    try:
        data = node.get("/v1/models").json()["data"]
    except (httpx.TransportError, OSError, KeyError, ValueError):
        return {}
    return {entry["id"]: entry["weir"]["release"] for entry in data}


def test_both_models_come_are_served_and_move_on_by_themselves(tiny_release: Path, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry", tiny_release)
    intents = tiny_classifier(tmp_path / "built")
    first = registry.publish("1.0.0")
    labels = in_small_chunks(intents, tmp_path / "l1", "1.0.0")
    publish(registry.site.desk, tmp_path / "l1", allow_unmeasured=True)
    models = json.dumps([{"name": "tiny"}, {"name": "intents", "precision": "8"}])
    node = StoreNode(tmp_path / "node", registry, str(registry.repository), models=models)
    with node:
        node.until(lambda: releases(node) == {"tiny": first.id, "intents": labels.id}, 90)
        answer = httpx.post(f"{node.http}/v1/classify", json={"text": "where is my parcel"}, timeout=30)
        assert answer.json()["weir"]["release"] == labels.id
        assert node.ask(model="tiny").status_code == 200
        slots = SlotFile(node.store)
        node.until(
            lambda: {m: slots.read(m).current for m in slots.models()} == {"tiny": first.id, "intents": labels.id}, 60
        )
        newer = in_small_chunks(intents, tmp_path / "l2", "1.1.0")
        publish(registry.site.desk, tmp_path / "l2", allow_unmeasured=True)
        node.until(lambda: releases(node).get("intents") == newer.id, 60)
        assert releases(node)["tiny"] == first.id
        node.until(lambda: slots.read("intents").current == newer.id, 60)
        assert slots.read("intents").previous == labels.id
        # What the one clears away leaves the other whole.
        assert Store(node.store).complete(first.id, [f for f in first.files if f.name != PLANE_LO])
        assert (node.store / "status.json").is_file() and (node.store / "status-intents.json").is_file()
        status = node.store / "status-intents.json"
        node.until(lambda: json.loads(status.read_text())["current"] == newer.id, 10)
    # Every model that is found in the store is served again, also without a repository and without being named.
    again = StoreNode(tmp_path / "node", registry, "", repository="", trusted_root="")
    again.given = {
        key: value for key, value in again.given.items() if key not in ("repository", "trusted_root", "models")
    }
    with again:
        again.until(lambda: releases(again) == {"tiny": first.id, "intents": newer.id}, 60)


def test_an_offer_says_what_its_model_is_for(tiny_release: Path, tmp_path: Path) -> None:
    from datetime import UTC, datetime

    from release.trust.client import TrustClient
    from release.trust.errors import Absent

    registry = Registry(tmp_path / "registry", tiny_release)
    registry.publish("1.0.0")
    in_small_chunks(tiny_classifier(tmp_path / "built"), tmp_path / "l1")
    publish(registry.site.desk, tmp_path / "l1", allow_unmeasured=True)
    client = TrustClient(tmp_path / "trust", registry.root.read_bytes())

    def fetch(path: str, most_bytes: int) -> bytes:
        try:
            return (registry.repository / path).read_bytes()
        except FileNotFoundError as error:
            raise Absent(path) from error

    offers: dict[str, Offer] = {o.model: o for o in client.refresh(fetch, datetime.now(UTC)).offers}
    assert {name: offer.task for name, offer in offers.items()} == {"tiny": "generate", "intents": "classify"}
    assert read_manifest(tmp_path / "l1").task == "classify"
