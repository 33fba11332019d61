"""The registry: what is known, what is active, and who wins when two change it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cloud import releases
from cloud.state.base import ABSENT, StateStore, VersionConflict
from cloud.state.sqlite import SqliteStateStore
from tests.fakes.releases import write_release
from wire.errors import NotFound, PreconditionFailed, WeirError

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[StateStore]:
    store = SqliteStateStore(tmp_path / "state.db")
    yield store
    await store.close()


async def register(store: StateStore, root: Path, name: str = "tiny", version: str = "1.0.0") -> str:
    folder = root / f"{name}-{version}"
    write_release(folder, name, version)
    return (await releases.register(store, releases.read_folder(folder, NOW))).id


async def test_a_registered_release_is_known_with_its_summary(store: StateStore, tmp_path: Path) -> None:
    release_id = await register(store, tmp_path)
    known = await releases.known(store, "tiny", release_id)
    assert known.id.startswith("tiny@1.0.0+")
    assert (known.precisions, known.cloud_model, known.folder) == ((4, 8), "big", "tiny-1.0.0")
    assert known.bytes > 0
    assert known.registered_at == NOW


async def test_registering_again_changes_nothing(store: StateStore, tmp_path: Path) -> None:
    release_id = await register(store, tmp_path)
    first = await store.get(f"release/tiny/{release_id}")
    later = releases.read_folder(tmp_path / "tiny-1.0.0", NOW.replace(year=2030))
    assert (await releases.register(store, later)).registered_at == NOW
    assert await store.get(f"release/tiny/{release_id}") == first


async def test_a_damaged_or_missing_folder_is_not_registered(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        releases.read_folder(tmp_path / "nothing", NOW)
    (tmp_path / "empty").mkdir()
    with pytest.raises(PreconditionFailed, match=r"manifest\.json"):
        releases.read_folder(tmp_path / "empty", NOW)
    write_release(tmp_path / "damaged")
    (tmp_path / "damaged" / "base.bin").write_bytes(b"tiny 1.0.0 base.bIn")
    with pytest.raises(PreconditionFailed, match=r"base\.bin"):
        releases.read_folder(tmp_path / "damaged", NOW)


async def test_only_known_releases_of_that_model_become_active(store: StateStore, tmp_path: Path) -> None:
    mine = await register(store, tmp_path)
    other = await register(store, tmp_path, name="other")
    for wrong in (other, "tiny@9.9.9+000000000000", "../tiny"):
        with pytest.raises(NotFound):
            await releases.activate(store, "tiny", wrong, by="test", now=NOW)
    assert await releases.active(store, "tiny") is None
    active = await releases.activate(store, "tiny", mine, by="test", now=NOW)
    assert await releases.active(store, "tiny") == active
    assert (active.release, active.by, active.since) == (mine, "test", NOW)


async def test_a_change_on_an_outdated_version_is_refused(store: StateStore, tmp_path: Path) -> None:
    one, two = await register(store, tmp_path), await register(store, tmp_path, version="2.0.0")
    first = await releases.activate(store, "tiny", one, by="a", now=NOW, expected=ABSENT)
    with pytest.raises(VersionConflict):
        await releases.activate(store, "tiny", two, by="b", now=NOW, expected=ABSENT)
    second = await releases.activate(store, "tiny", two, by="a", now=NOW, expected=first.version)
    with pytest.raises(VersionConflict) as caught:
        await releases.activate(store, "tiny", one, by="b", now=NOW, expected=first.version)
    assert caught.value.current == second.version


async def test_activating_what_is_active_keeps_its_version(store: StateStore, tmp_path: Path) -> None:
    release_id = await register(store, tmp_path)
    first = await releases.activate(store, "tiny", release_id, by="a", now=NOW)
    again = await releases.activate(store, "tiny", release_id, by="b", now=NOW.replace(year=2030))
    assert again == first


async def test_of_conditional_changes_at_once_one_wins(store: StateStore, tmp_path: Path) -> None:
    ids = [await register(store, tmp_path, version=f"1.0.{number}") for number in range(6)]
    start = await releases.activate(store, "tiny", ids[0], by="start", now=NOW)
    outcomes = await asyncio.gather(
        *(releases.activate(store, "tiny", one, by=one, now=NOW, expected=start.version) for one in ids[1:]),
        return_exceptions=True,
    )
    winners = [outcome for outcome in outcomes if isinstance(outcome, releases.ActiveRelease)]
    assert len(winners) == 1
    assert all(isinstance(outcome, VersionConflict) for outcome in outcomes if outcome not in winners)
    assert await releases.active(store, "tiny") == winners[0]


async def test_pages_hold_every_release_once(store: StateStore, tmp_path: Path) -> None:
    ids = {await register(store, tmp_path, version=f"1.0.{number}") for number in range(5)}
    await register(store, tmp_path, name="tiny2")
    seen: list[str] = []
    after = ""
    for step in itertools.count():
        page = await releases.page(store, "tiny", after, limit=2)
        seen += [release.id for release in page.releases]
        if page.next is None:
            break
        after = page.next
        assert step < 5
    assert len(seen) == 5 and set(seen) == ids
    assert len((await releases.page(store)).releases) == 6


async def test_fields_of_a_newer_admin_are_passed_over_and_rubbish_is_named(store: StateStore) -> None:
    await store.set("active/tiny", b'{"model":"tiny","release":"r","since":"2026-01-01T00:00:00Z","by":"x","new":1}')
    active = await releases.active(store, "tiny")
    assert active is not None and active.release == "r"
    for rubbish in (b"", b"[]", b"{}", b"\xff"):
        await store.set("active/tiny", rubbish)
        with pytest.raises(WeirError, match="active/tiny"):
            await releases.active(store, "tiny")
