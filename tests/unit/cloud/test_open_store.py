"""URLs of stores: what they mean, what is refused, and that a SQLite file is checked before use."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import pytest

from cloud.state.base import StoreUnavailable
from cloud.state.open import open_store
from cloud.state.sqlite import SqliteStateStore
from runtime.config import ConfigError


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("", "store_url"),
        ("postgres://host/db", "postgres"),
        ("sqlite://host/state.db", "sqlite:///relative.db"),
        ("sqlite:///", "sqlite:///relative.db"),
        ("sqlite:///:memory:", "name a file"),
        ("redis:///0", "HOST"),
        ("redis://host:port/0", "store_url"),
        ("redis://host/nought", "number"),
        ("redis://host/0?timeout=9", "timeout"),
        ("redis://host/0?namespace=a%20b", "namespace"),
    ],
)
def test_a_wrong_url_says_what_is_allowed(url: str, names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        open_store(url)


def test_no_message_shows_a_password() -> None:
    with pytest.raises(ConfigError) as caught:
        open_store("redis://user:hunter2@host/x")
    assert "hunter2" not in str(caught.value)


async def test_three_slashes_are_relative_and_four_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url, path in (("sqlite:///near.db", "near.db"), (f"sqlite:///{tmp_path}/far.db", "far.db")):
        store = open_store(url)
        await store.set("k", b"v")
        await store.close()
        assert (tmp_path / path).exists()


@pytest.mark.parametrize("url", ["redis://localhost:6379/2?namespace=other", "rediss://:secret@redis.internal/0"])
async def test_redis_urls_open_without_a_server(url: str) -> None:
    await open_store(url).close()


async def test_a_folder_that_is_not_there_is_unavailable_not_a_crash(tmp_path: Path) -> None:
    store = SqliteStateStore(tmp_path / "missing" / "state.db")
    with pytest.raises(StoreUnavailable, match="check the path"):
        await store.get("k")
    (tmp_path / "missing").mkdir()
    assert await store.get("k") is None
    await store.close()


async def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    before = path.read_bytes()
    store = SqliteStateStore(path)
    with pytest.raises(StoreUnavailable, match="another program"):
        await store.set("k", b"v")
    await store.close()
    assert path.read_bytes() == before


async def test_a_file_of_a_newer_schema_asks_for_an_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = SqliteStateStore(path)
    await store.set("k", b"v")
    await store.close()
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version = 99")
    newer.close()
    store = SqliteStateStore(path)
    with pytest.raises(StoreUnavailable, match="upgrade"):
        await store.get("k")
    await store.close()


async def test_a_lock_held_by_another_process_bounds_writers_and_lets_readers_by(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = SqliteStateStore(path, busy_s=0.2)
    await store.set("k", b"v")
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked"):
        await store.set("k", b"w")
    entry = await store.get("k")
    assert entry is not None and entry.value == b"v"
    holder.execute("ROLLBACK")
    holder.close()
    await store.set("k", b"w")
    await store.close()


async def test_a_clock_that_jumps_back_does_not_take_versions_back(tmp_path: Path) -> None:
    clock = [2_000_000_000.0]
    store = SqliteStateStore(tmp_path / "state.db", now=lambda: clock[0])
    first = await store.set("k", b"1")
    clock[0] -= 3600
    second = await store.set("k", b"2")
    assert second == first + 1
    await store.close()


def test_redis_without_its_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloud.state.redis_store", None)  # as when what it imports is not there
    with pytest.raises(ConfigError, match="pip install"):
        open_store("redis://127.0.0.1:6379/0")
