"""Active releases as the gateway follows them: read from the store, kept when it goes away."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cloud.gateway.active import ActiveReleases
from cloud.gateway.models import resolve_model
from cloud.releases import KnownRelease, activate, register
from cloud.state.base import Listing, StoreUnavailable
from cloud.state.sqlite import SqliteStateStore
from wire.errors import NotFound

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Flaky(SqliteStateStore):
    """A store that can be cut off."""

    cut = False

    async def list(self, prefix: str, limit: int = 1000, after: str = "") -> Listing:
        if self.cut:
            raise StoreUnavailable("the cable is cut")
        return await super().list(prefix, limit, after)


def release(model: str, cloud_model: str) -> KnownRelease:
    return KnownRelease(
        id=f"{model}@1.0.0+aa",
        model=model,
        version="1.0.0",
        task="generate",
        precisions=(4, 8),
        tokenizer_digest="",
        cloud_model=cloud_model,
        bytes=1,
        calibrations=(),
        folder="f",
        registered_at=NOW,
    )


async def test_releases_and_their_cloud_models_are_followed_and_survive_the_store(tmp_path: Path) -> None:
    store = Flaky(tmp_path / "state.db")
    try:
        known = await register(store, release("org/small", "big"))
        await activate(store, "org/small", known.id, by="test", now=NOW)
        followed = ActiveReleases(store)
        await followed.refresh()
        assert dict(followed.releases) == {"org/small": known.id}
        assert dict(followed.cloud_models) == {"org/small": "big"}
        assert followed.fault == ""
        store.cut = True
        await followed.refresh()
        assert dict(followed.releases) == {"org/small": known.id}
        assert "the cable is cut" in followed.fault
        store.cut = False
        await followed.refresh()
        assert followed.fault == ""
    finally:
        await store.close()


async def test_a_key_that_cannot_be_read_costs_that_key_only(tmp_path: Path) -> None:
    store = SqliteStateStore(tmp_path / "state.db")
    try:
        await store.set("active/broken", b"not json")
        await store.set("active/unregistered", json.dumps({"release": "unregistered@1.0.0+bb"}).encode())
        followed = ActiveReleases(store)
        await followed.refresh()
        assert dict(followed.releases) == {"unregistered": "unregistered@1.0.0+bb"}
        assert dict(followed.cloud_models) == {}
        assert followed.fault == ""
    finally:
        await store.close()


def test_an_escalation_is_answered_by_the_model_its_release_refers_to() -> None:
    served, references = ("big", "other"), {"small": "other", "stale": "gone"}
    assert resolve_model("small", 1, served, "big", references) == "other"
    assert resolve_model("stale", 1, served, "big", references) == "big"
    assert resolve_model("big", 1, served, "other", references) == "big"
    with pytest.raises(NotFound):
        resolve_model("small", 0, served, "big", references)
