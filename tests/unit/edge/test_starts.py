"""What a launcher starts an engine with, from a store: trials, crashes, refusals, returns."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.config import EdgeConfig
from edge.engine.endings import REASON_NAME
from edge.slot_file import SlotFile
from edge.slots import Slots
from edge.starts import NothingToServe, StoreStarts
from release.manifest import MANIFEST_NAME, PLANE_LO, TOKENIZER, Manifest
from release.store import Store, first_part
from tests.fakes.disk import QuickDisk
from tests.fakes.node import Events
from tests.fakes.releases import write_release


class Launching:
    """A store and what the launcher would do with it."""

    def __init__(self, tmp_path: Path, **settings: object) -> None:
        self.tmp_path = tmp_path
        (tmp_path / "run").mkdir()
        given = {"store_dir": tmp_path / "store", "run_dir": tmp_path / "run", **settings}
        self.config = EdgeConfig(**given)  # type: ignore[arg-type]
        self.store, self.events = Store(tmp_path / "store", disk=QuickDisk()), Events()
        self.store.prepare()
        self.slots = SlotFile(tmp_path / "store", QuickDisk())
        self.starts = StoreStarts(self.config, self.store, self.slots, self.events, lambda: 0.0)

    def add(self, version: str, *, whole: bool = True) -> Manifest:
        folder = self.tmp_path / "built" / version
        manifest = write_release(folder, version=version)
        for entry in manifest.files if whole else first_part(manifest):
            with self.store.partial(entry) as partial:
                partial.append((folder / entry.name).read_bytes())
                partial.finish()
        self.store.show(manifest, (folder / MANIFEST_NAME).read_bytes())
        return manifest

    def start(self) -> tuple[str, int]:
        start = self.starts.next()
        return start.release.manifest.id, start.precision

    def crash(self, detail: str = "engine exited with -11") -> None:
        assert self.starts.ended(detail, unusable=False)

    def refuse(self, reason: str = "self-test failed") -> None:
        (self.tmp_path / "run" / REASON_NAME).write_text(reason)
        assert self.starts.ended("engine exited with 69", unusable=True)

    @property
    def now(self) -> Slots:
        return self.slots.read("tiny")


def test_an_empty_store_is_waited_for(tmp_path: Path) -> None:
    launching = Launching(tmp_path)
    assert not launching.starts.there()
    with pytest.raises(NothingToServe):
        launching.start()
    manifest = launching.add("1.0.0")
    assert launching.starts.there()
    assert launching.start() == (manifest.id, 8)
    assert launching.now == Slots(trial=manifest.id, boots=1)


def test_a_release_that_crashes_twice_at_start_gives_way_to_the_one_before(tmp_path: Path) -> None:
    launching = Launching(tmp_path)
    old = launching.add("1.0.0")
    launching.start()
    launching.slots.change("tiny", lambda slots: slots.proved(old.id, 8))
    new = launching.add("2.0.0")
    launching.slots.change("tiny", lambda slots: slots.offered(new.id))
    for _ in range(2):
        assert launching.start()[0] == new.id
        launching.crash()
    assert launching.start()[0] == old.id
    assert "crashed 2 times" in launching.now.bad[new.id]
    (returned,) = launching.events.of("ReleaseReturned")
    assert (returned.release, returned.to) == (new.id, old.id)  # type: ignore[union-attr]
    launching.slots.change("tiny", lambda slots: slots.offered(new.id))
    assert launching.start()[0] == old.id
    for _ in range(5):  # what is proved is restarted however often it dies
        launching.crash()
        assert launching.start()[0] == old.id


def test_a_release_that_is_refused_is_not_started_twice(tmp_path: Path) -> None:
    launching = Launching(tmp_path)
    only = launching.add("1.0.0")
    launching.start()
    launching.refuse("self-test failed: token 3 by 0.7")
    assert not launching.starts.there()
    assert launching.now.bad == {only.id: "the engine refused it: self-test failed: token 3 by 0.7"}
    better = launching.add("1.0.1")
    assert launching.start()[0] == better.id


def test_a_current_release_that_cannot_be_loaded_any_more_gives_way(tmp_path: Path) -> None:
    launching = Launching(tmp_path)
    old, new = launching.add("1.0.0"), launching.add("2.0.0")
    launching.slots.change("tiny", lambda _slots: Slots(current=new.id, previous=old.id))
    launching.start()
    launching.refuse("plane.hi.bin is damaged")
    assert launching.start()[0] == old.id
    assert new.id in launching.now.bad


def test_a_power_cut_at_every_start_gives_no_lone_release_up(tmp_path: Path) -> None:
    launching = Launching(tmp_path)
    manifest = launching.add("1.0.0")
    for _ in range(30):
        assert launching.start()[0] == manifest.id


def test_lost_slots_begin_with_the_newest_whole_release(tmp_path: Path) -> None:
    launching = Launching(tmp_path)
    launching.add("1.0.0")
    newest = launching.add("1.10.0", whole=False)
    broken = launching.add("2.0.0")
    (launching.store.folder(broken.id) / TOKENIZER).unlink()
    assert launching.start() == (newest.id, 4)
    launching.starts.stopped()
    assert launching.now.boots == 0


def test_the_seed_serves_until_the_store_has_something(tmp_path: Path) -> None:
    seed = write_release(tmp_path / "seed", version="0.1.0")
    launching = Launching(tmp_path, releases_dir=tmp_path / "seed")
    assert launching.start() == (seed.id, 8)
    arrived = launching.add("1.0.0")
    assert launching.start()[0] == arrived.id


def test_a_pin_is_started_where_it_is_here(tmp_path: Path) -> None:
    pinned = write_release(tmp_path / "same", version="1.0.0")
    launching = Launching(tmp_path, release_pin=pinned.id)
    launching.add("1.0.0")
    launching.add("2.0.0")
    launching.slots.change("tiny", lambda slots: slots.proved("tiny@2.0.0+0", 8))
    assert launching.start()[0] == pinned.id


def test_pinned_eight_starts_with_what_is_here(tmp_path: Path) -> None:
    launching = Launching(tmp_path, precision="8")
    manifest = launching.add("1.0.0", whole=False)
    assert launching.start()[1] == 4
    folder = launching.store.folder(manifest.id)
    for name in (PLANE_LO, "graph.8.onnx"):
        (folder / name).write_bytes(b"")
    assert launching.start()[1] == 8


def test_a_full_disk_keeps_no_engine_from_starting(tmp_path: Path) -> None:
    def full(_operation: str, path: Path) -> None:
        raise OSError(28, "No space left on device", str(path))

    launching = Launching(tmp_path)
    old = launching.add("1.0.0")
    launching.slots.change("tiny", lambda _slots: Slots(current=old.id))
    new = launching.add("2.0.0")
    launching.slots.change("tiny", lambda slots: slots.offered(new.id))
    slots = SlotFile(tmp_path / "store", QuickDisk(full))
    launching.starts = StoreStarts(launching.config, launching.store, slots, launching.events, lambda: 0.0)
    for _ in range(2):
        assert launching.start()[0] == new.id
        launching.crash()
    assert launching.start()[0] == old.id


def test_too_little_memory_is_not_held_against_what_served(tmp_path: Path) -> None:
    launching = Launching(tmp_path)
    manifest = launching.add("1.0.0")
    launching.slots.change("tiny", lambda _slots: Slots(current=manifest.id))
    launching.start()
    launching.crash("engine exited with 75")
    assert launching.start()[0] == manifest.id
    assert not launching.now.bad


def test_slots_of_a_model_that_is_not_here_any_more_keep_no_engine_from_starting(tmp_path: Path) -> None:
    launching = Launching(tmp_path)
    launching.slots.change("another", lambda now: now.offered("another@1.0.0+0123456789ab"))
    manifest = launching.add("1.0.0")
    assert launching.starts.there()
    assert launching.start()[0] == manifest.id
