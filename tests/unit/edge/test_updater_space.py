"""A disk that is full, at any step and for real: what served serves, room is made, and the figures are told."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.slots import Slots
from release.folder import open_release
from tests.fakes.disk import QuickDisk, Steps, full
from tests.fakes.range_server import RangeServer
from tests.fakes.updating import UpdatingNode, http
from tests.unit.edge.test_updater import CHUNK, Shop, no_proxy, shop

__all__ = ["no_proxy", "shop"]  # fixtures

# Pages of 4 KiB that a release takes, small files and folders' names aside, and what else a store holds.
RELEASE_PAGES, BESIDE_PAGES = 11 + 6 + 5, 24


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for two releases, and not for three."""
    where = tmp_path / "small"
    where.mkdir()
    size = f"size={(2 * RELEASE_PAGES + BESIDE_PAGES) * 4}k"
    mounted = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(where)], check=False, capture_output=True
    )
    if not mounted or mounted.returncode != 0:
        pytest.skip("a file system of its own needs root and the right to mount")
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


async def test_the_disk_may_be_full_at_any_step(tmp_path: Path, shop: Shop) -> None:
    """Law: a write that finds no room ends nothing; with room the update goes through."""
    old = shop.publish("1.0.0")
    first = UpdatingNode(tmp_path / "store", shop.root, [str(shop.repository)])
    await first.run_until(lambda: first.holds(old))
    told = 0
    for step in range(5, 90, 6):
        serving = old.id
        new = shop.publish(f"2.0.{step}")
        made = UpdatingNode(
            tmp_path / "store", shop.root, [str(shop.repository)], serving=serving, disk=QuickDisk(Steps(step, full))
        )
        UpdatingNode(tmp_path / "store", None, ()).slot_file.change(
            "tiny", lambda _now, was=serving: Slots(current=was)
        )  # type: ignore[misc]
        await made.run_until(lambda made=made, new=new: made.slots.current == new.id and made.holds(new))  # type: ignore[misc]
        told += any("full" in str(event) or "No space" in str(event) for event in made.events.seen)
        assert "ReleaseReturned" not in {type(event).__name__ for event in made.events.seen}
        old = new
    assert told > 5


async def test_a_real_disk_takes_two_releases_and_never_a_third(small_disk: Path, shop: Shop) -> None:
    versions = [shop.publish(f"1.{minor}.0") for minor in range(4)]
    serving = ""
    for manifest in versions:
        made = UpdatingNode(
            small_disk, shop.root, [str(shop.repository)], serving=serving, active={"tiny": manifest.id}
        )
        await made.run_until(
            lambda made=made, manifest=manifest: made.holds(manifest) and made.slots.to_start == manifest.id  # type: ignore[misc]
        )
        if serving:
            await made.run_until(lambda made=made, manifest=manifest: made.slots.current == manifest.id)  # type: ignore[misc]
        else:
            made.slot_file.change("tiny", lambda slots, manifest=manifest: slots.proved(manifest.id, 4))  # type: ignore[misc]
        assert open_release(made.store.folder(manifest.id)).precisions == (4, 8)
        serving = manifest.id
    held = {found.manifest.id for found in made.store.found()}
    assert held == {versions[-1].id, versions[-2].id}


async def test_a_disk_that_somebody_else_fills_up(small_disk: Path, shop: Shop) -> None:
    """In the middle of a release: the old one serves, the figures are told, and room makes it go on."""
    old = shop.publish("1.0.0")
    made = UpdatingNode(small_disk, shop.root, [str(shop.repository)])
    await made.run_until(lambda: made.holds(old))
    new = shop.publish("2.0.0")
    ballast = small_disk / "ballast"
    with RangeServer(shop.repository, rate=lambda path: 60_000 if "/objects/" in path else None).running() as server:
        made = UpdatingNode(small_disk, shop.root, [http(server.url)], serving=old.id)
        made.slot_file.change("tiny", lambda _slots: Slots(current=old.id))

        def fill() -> bool:
            """Once a few chunks have come."""
            if ballast.exists():
                return True
            if sum(asked.sent for asked in server.objects()) < 5 * CHUNK:
                return False
            try:
                with ballast.open("ab", buffering=0) as handle:
                    while True:
                        handle.write(bytes(CHUNK))
            except OSError:
                return True

        await made.run_until(lambda: fill() and "free some space" in made.updater.status.problem)
        assert open_release(made.store.folder(old.id)).precisions == (4, 8)
        assert made.engine.model.release == old.id
        ballast.unlink()
        await made.run_until(lambda: made.slots.current == new.id and made.holds(new), 40)


async def test_room_is_looked_for_before_a_byte_is_fetched(tmp_path: Path, shop: Shop) -> None:
    manifest = shop.publish()
    with RangeServer(shop.repository).running() as server:
        made = UpdatingNode(tmp_path / "store", shop.root, [http(server.url)], free=lambda _path: 10 * CHUNK)
        await made.run_until(lambda: bool(made.updater.status.problem))
        assert "free some space" in made.updater.status.problem
        planes = {entry.sha256 for entry in manifest.files if entry.bytes > CHUNK}
        assert not [asked for asked in server.asked if asked.path.rpartition("/")[2] in planes]
