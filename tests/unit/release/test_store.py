"""The store: only verified bytes are linked, what arrived is taken up again, cuts and full disks lose nothing."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from release.errors import CorruptRelease, OutOfSpace
from release.folder import describe_file, open_release
from release.manifest import MANIFEST_NAME, PLANE_HI, PLANE_LO, File, Manifest, read, write
from release.partial import WrongChunk
from release.store import Store, first_part, second_part
from tests.fakes.disk import QuickDisk, Steps, every_cut, full
from tests.fakes.releases import write_release

CHUNK = 64


def chunked(folder: Path, version: str = "1.0.0", shared: bytes = b"") -> Manifest:
    """A release without a model, in small chunks; `shared` is its plane.hi, the same in every version."""
    manifest = write_release(folder, version=version)
    for name, count in ((PLANE_HI, 5), (PLANE_LO, 2)):
        content = random.Random(f"{version} {name}").randbytes(count * CHUNK - 10)
        (folder / name).write_bytes(shared if shared and name == PLANE_HI else content)
    files = tuple(describe_file(folder / entry.name, CHUNK) for entry in manifest.files)
    text = write(dataclasses.replace(manifest, files=files))
    (folder / MANIFEST_NAME).write_text(text)
    return read(text)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "source"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store")
    made.prepare()
    return made


def bring(store: Store, source: Path, files: tuple[File, ...]) -> None:
    for entry in files:
        if store.has(entry):
            continue
        with store.partial(entry) as partial:
            content = (source / entry.name).read_bytes()
            while partial.missing:
                partial.append(content[partial.have : partial.have + 100])
            partial.finish()


def show(store: Store, source: Path, manifest: Manifest) -> Path:
    return store.show(manifest, (source / MANIFEST_NAME).read_bytes())


def receive(store: Store, source: Path, manifest: Manifest) -> None:
    """All of a release, as an updater brings it."""
    store.prepare()
    bring(store, source, first_part(manifest))
    show(store, source, manifest)
    bring(store, source, second_part(manifest))
    show(store, source, manifest)


def test_a_release_appears_with_its_first_part_and_grows(store: Store, source: Path) -> None:
    manifest = chunked(source)
    assert store.missing(manifest.files) == sum(entry.bytes for entry in manifest.files)
    with pytest.raises(CorruptRelease, match=PLANE_HI):
        bring(store, source, first_part(manifest)[:1])
        show(store, source, manifest)
    assert store.found() == ()
    bring(store, source, first_part(manifest))
    folder = show(store, source, manifest)
    assert open_release(folder).precisions == (4,)
    assert [found.manifest.id for found in store.found()] == [manifest.id]
    assert not store.complete(manifest.id, manifest.files)
    bring(store, source, second_part(manifest))
    for entry in second_part(manifest):
        store.link(manifest.id, entry)
    assert store.complete(manifest.id, manifest.files)
    assert open_release(folder).precisions == (4, 8)
    assert store.missing(manifest.files) == 0
    assert not os.access(folder / PLANE_HI, os.W_OK) or os.geteuid() == 0


def test_what_two_releases_share_is_kept_once(store: Store, source: Path, tmp_path: Path) -> None:
    shared = random.Random(1).randbytes(3 * CHUNK)
    first, second = chunked(source, "1.0.0", shared), chunked(tmp_path / "second", "1.1.0", shared)
    receive(store, source, first)
    plane = next(entry for entry in second.files if entry.name == PLANE_HI)
    assert store.missing(second.files) == sum(entry.bytes for entry in second.files) - plane.bytes
    receive(store, tmp_path / "second", second)
    one, other = store.folder(first.id) / PLANE_HI, store.folder(second.id) / PLANE_HI
    assert one.samefile(other)
    store.collect([second.id])
    assert [found.manifest.id for found in store.found()] == [second.id]
    assert open_release(store.folder(second.id)).precisions == (4, 8)


@pytest.mark.parametrize("kept", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 5 * CHUNK - 11, 5 * CHUNK - 10])
def test_an_interrupted_file_goes_on_where_it_was(store: Store, source: Path, kept: int) -> None:
    plane = next(entry for entry in chunked(source).files if entry.name == PLANE_HI)
    content = (source / PLANE_HI).read_bytes()
    with store.partial(plane) as partial:
        partial.append(content[:kept])
    with store.partial(plane) as partial:
        assert (partial.have, partial.missing) == (kept, len(content) - kept)
        partial.append(content[kept:])
        assert partial.finish().read_bytes() == content


@pytest.mark.parametrize("spoilt", [0, CHUNK, CHUNK + 5])
def test_a_spoilt_partial_costs_what_is_behind_the_spoilt_byte(store: Store, source: Path, spoilt: int) -> None:
    plane = next(entry for entry in chunked(source).files if entry.name == PLANE_HI)
    content = (source / PLANE_HI).read_bytes()
    with store.partial(plane) as partial:
        partial.append(content[: 2 * CHUNK + 3])
    path = store.root / "partial" / plane.sha256
    held = bytearray(path.read_bytes())
    held[spoilt] ^= 1
    path.write_bytes(held)
    with store.partial(plane) as partial:
        assert partial.have == spoilt // CHUNK * CHUNK
        partial.append(content[partial.have :])
        partial.finish()


def test_a_wrong_chunk_is_cut_off_and_a_spoilt_tail_is_not_the_senders_fault(store: Store, source: Path) -> None:
    plane = next(entry for entry in chunked(source).files if entry.name == PLANE_HI)
    content = (source / PLANE_HI).read_bytes()
    with store.partial(plane) as partial:
        partial.append(content[:CHUNK])
        with pytest.raises(WrongChunk) as wrong:
            partial.append(b"x" * CHUNK)
        assert not wrong.value.kept_tail
        assert partial.have == partial.verified == CHUNK
        partial.append(b"spoilt")
    with store.partial(plane) as partial:
        assert partial.have == CHUNK + 6
        with pytest.raises(WrongChunk) as wrong:
            partial.append(content[partial.have : 2 * CHUNK])
        assert wrong.value.kept_tail
        partial.append(content[CHUNK:])
        with pytest.raises(CorruptRelease, match="more bytes"):
            partial.append(b"x")
        partial.finish()


def test_a_manifest_whose_chunks_and_whole_disagree_gives_no_object(store: Store, source: Path) -> None:
    plane = next(entry for entry in chunked(source).files if entry.name == PLANE_HI)
    wrong = dataclasses.replace(plane, sha256="0" * 64)
    with store.partial(wrong) as partial:
        partial.append((source / PLANE_HI).read_bytes())
        with pytest.raises(CorruptRelease, match="contradicts"):
            partial.finish()
    assert not store.has(wrong)


def test_a_store_that_somebody_empties_meanwhile_takes_files_again(store: Store, source: Path) -> None:
    manifest = chunked(source)
    shutil.rmtree(store.root)
    bring(store, source, manifest.files)
    with store.locked():
        assert store.show(manifest, (source / MANIFEST_NAME).read_bytes()).is_dir()


def test_an_unfinished_file_is_no_object(store: Store, source: Path) -> None:
    plane = next(entry for entry in chunked(source).files if entry.name == PLANE_HI)
    with store.partial(plane) as partial:
        partial.append((source / PLANE_HI).read_bytes()[:-1])
        with pytest.raises(CorruptRelease):
            partial.finish()
    with pytest.raises(CorruptRelease):
        store.put(b"text", hashlib.sha256(b"other").hexdigest())
    with pytest.raises(CorruptRelease):
        store.folder("../elsewhere")


def test_space_is_reserved_with_figures(tmp_path: Path) -> None:
    store = Store(tmp_path, keep_free_bytes=50, free=lambda _path: 120)
    store.reserve(70)
    with pytest.raises(OutOfSpace, match=r"71 bytes are needed .* 120 are free, of which 50 must stay free.*: 1 bytes"):
        store.reserve(71)
    assert store.spare() == 70


def test_collecting_keeps_what_is_named(store: Store, source: Path, tmp_path: Path) -> None:
    first, second = chunked(source, "1.0.0"), chunked(tmp_path / "second", "2.0.0")
    receive(store, source, first)
    entry = first_part(second)[0]
    bring(store, tmp_path / "second", (entry,))
    plane = next(file for file in second.files if file.name == PLANE_HI)
    with store.partial(plane) as partial:
        partial.append((tmp_path / "second" / PLANE_HI).read_bytes()[:100])
    (store.releases / ".left@1.0.0+0").mkdir()
    assert store.collect([first.id], second) == 0
    assert store.has(entry)
    assert store.missing([plane]) == plane.bytes - CHUNK
    assert store.collect([first.id]) >= entry.bytes + 100
    assert not store.has(entry)
    assert open_release(store.folder(first.id)).precisions == (4, 8)
    assert [path.name for path in store.releases.iterdir()] == [first.id]
    (store.folder(first.id) / MANIFEST_NAME).unlink()
    (store.folder(first.id) / MANIFEST_NAME).write_text("{}")
    store.collect([first.id])
    assert all(store.has(file) for file in first.files)


def test_rotten_files_are_found_and_go(store: Store, source: Path) -> None:
    manifest = chunked(source)
    receive(store, source, manifest)
    assert store.drop_damaged(manifest) == ()
    path = store.object(next(entry.sha256 for entry in manifest.files if entry.name == PLANE_LO))
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert store.drop_damaged(manifest) == (PLANE_LO,)
    assert open_release(store.folder(manifest.id)).precisions == (4,)
    receive(store, source, manifest)
    assert open_release(store.folder(manifest.id)).precisions == (4, 8)


def rot(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(b"?" + path.read_bytes()[1:])


def test_a_rotten_manifest_stands_in_nobodys_way_and_is_mended(store: Store, source: Path, tmp_path: Path) -> None:
    """Its release's files stay when the store is cleared up; a sound copy takes its place when one comes."""
    kept, other = chunked(source, "1.0.0"), chunked(tmp_path / "other", "2.0.0")
    receive(store, source, kept)
    receive(store, tmp_path / "other", other)
    rot(store.folder(kept.id) / MANIFEST_NAME)
    assert [found.manifest.id for found in store.found()] == [other.id]
    assert store.collect([kept.id]) > 0
    assert not store.folder(other.id).exists()
    assert all(store.has(entry) for entry in kept.files)
    content = (source / MANIFEST_NAME).read_bytes()
    store.show(kept, content)
    assert open_release(store.folder(kept.id)).precisions == (4, 8)
    rotten_object = store.object(hashlib.sha256(content).hexdigest())
    assert rotten_object.read_bytes() == content


def servable(root: Path) -> list[str]:
    """What stands in a store after a cut, each release verified; nothing half may have a name."""
    store = Store(root)
    for path in store.root.glob("objects/*/*"):
        if not path.name.startswith("."):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    return [open_release(found.path).id for found in store.found()]


def test_the_power_may_go_at_any_step(source: Path, tmp_path: Path) -> None:
    """Law: after a cut at any write what could serve before serves, and the same work goes through."""
    old, new = chunked(source, "1.0.0"), chunked(tmp_path / "new", "2.0.0")
    before = tmp_path / "before"
    receive(Store(before, disk=QuickDisk()), source, old)
    root = tmp_path / "store"

    def work(steps: Steps) -> None:
        store = Store(root, disk=QuickDisk(steps))
        receive(store, tmp_path / "new", new)
        store.collect([new.id])

    shutil.copytree(before, root, symlinks=True)
    for step in every_cut(work):
        standing = servable(root)
        assert old.id in standing or new.id in standing, step
        receive(Store(root, disk=QuickDisk()), tmp_path / "new", new)
        assert new.id in servable(root)
        shutil.rmtree(root)
        shutil.copytree(before, root)
    assert servable(root) == [new.id]


@pytest.mark.parametrize("make", [full])
def test_the_disk_may_be_full_at_any_step(source: Path, tmp_path: Path, make: Callable[[str, Path], None]) -> None:
    """Law: OutOfSpace and nothing else; what could serve serves; with room the same work goes through."""
    old, new = chunked(source, "1.0.0"), chunked(tmp_path / "new", "2.0.0")
    root = tmp_path / "store"
    receive(Store(root), source, old)
    refused = 0
    for step in range(1000):
        steps = Steps(step, make)
        store = Store(root, disk=QuickDisk(steps))
        try:
            receive(store, tmp_path / "new", new)
        except OutOfSpace as error:
            assert "full" in str(error)
            refused += 1
        except OSError as error:  # before anything was received
            assert error.errno == errno.ENOSPC and steps.seen[-1].startswith("mkdir")
        assert old.id in servable(root)
        if steps.count <= step:
            break
        receive(Store(root, disk=QuickDisk()), tmp_path / "new", new)
        assert new.id in servable(root)
        Store(root, disk=QuickDisk()).collect([old.id])
    assert refused > 20
