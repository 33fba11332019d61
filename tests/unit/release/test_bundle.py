"""A repository in one file: carried whole, checked as any source, and no way out of the folder."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from release.bundle import BadBundle, opened
from release.errors import CorruptRelease, OutOfSpace, ReleaseError
from release.manifest import PLANE_LO
from release.repository.carry import complete, write_bundle
from release.repository.errors import NotFit
from release.repository.mirror import Imported, take_in
from release.repository.status import listed
from release.trust.client import FolderSource
from release.trust.errors import Damaged, Expired, Replayed, WrongSignature
from tests.fakes.disk import QuickDisk, Steps, every_cut, full
from tests.fakes.repository import Site
from tests.fakes.tamper import flipped, state_of

SHARED = b"residual " * 1000


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.publish("1.0.0", shared=SHARED)
    return made


def carried(site: Site, *versions: str, name: str = "bundle.tar") -> Path:
    ids = {offer.version: offer.release for offer in listed(site.repository)[1]}
    out = site.folder / name
    write_bundle(site.repository, [ids[version] for version in versions], out, None)
    return out


def imported(site: Site, bundle: Path, **other: object) -> Imported:
    with opened(bundle) as source:
        return take_in(source, site.folder / "mirror", site.first_root, site.now, disk=QuickDisk(), **other)  # type: ignore[arg-type]


def test_a_bundle_carries_a_release_to_nodes_without_a_network(site: Site) -> None:
    done = imported(site, carried(site, "1.0.0"))
    assert done.stored_bytes > len(SHARED) and done.shared_bytes == 0
    mirror = site.folder / "mirror"
    catalogue = site.node().refresh(FolderSource(mirror), site.now)
    offer = catalogue.newest("tiny")
    assert offer is not None and complete(mirror, offer)
    assert SHARED in state_of(mirror).values()


def test_the_next_bundle_brings_only_what_is_new(site: Site) -> None:
    imported(site, carried(site, "1.0.0"))
    site.publish("1.1.0", shared=SHARED)
    site.publish("2.0.0")
    done = imported(site, carried(site, "1.1.0"))
    assert done.shared_bytes == len(SHARED)
    here = {offer.version: complete(site.folder / "mirror", offer) for offer in done.catalogue.offers}
    assert here == {"1.0.0": True, "1.1.0": True, "2.0.0": False}


def test_the_same_releases_make_the_same_bundle(site: Site) -> None:
    one, two = carried(site, "1.0.0"), carried(site, "1.0.0", name="again.tar")
    assert one.read_bytes() == two.read_bytes()
    with tarfile.open(one) as tar:  # any tar reads it
        assert all(member.isfile() for member in tar)


def test_what_is_not_offered_is_not_carried(site: Site) -> None:
    with pytest.raises(NotFit, match="does not offer"):
        write_bundle(site.repository, ["tiny@9.0.0+000000000000"], site.folder / "b.tar", None)
    path = next(path for path, content in state_of(site.repository).items() if content == SHARED)
    (site.repository / path).write_bytes(flipped(SHARED, 5))
    with pytest.raises(CorruptRelease, match="publish its release again"):
        carried(site, "1.0.0")
    assert not list(site.folder.glob("*.tar")) and not list(site.folder.glob(".bundle*"))


def test_a_flipped_byte_anywhere_is_refused_or_means_nothing(site: Site) -> None:
    """Padding, and the case of a signature's digits, may change; what nodes are given may not."""
    bundle = carried(site, "1.0.0")
    content = bundle.read_bytes()
    sound = None
    refused = 0
    for at in range(100, len(content), 211):
        bundle.write_bytes(flipped(content, at, at % 8))
        mirror = site.folder / f"mirror-{at}"
        try:
            with opened(bundle) as source:
                take_in(source, mirror, site.first_root, site.now, disk=QuickDisk())
        except ReleaseError as error:
            assert len(str(error)) > 30
            refused += 1
            assert not (mirror / "metadata").exists()
            continue
        objects = {path: data for path, data in state_of(mirror).items() if path.startswith("objects/")}
        sound = sound or objects
        assert objects == sound
    assert refused > 50


def test_a_bundle_cut_anywhere_is_refused(site: Site) -> None:
    bundle = carried(site, "1.0.0")
    content = bundle.read_bytes()
    end = content.rstrip(b"\0")
    for size in (0, 1, 511, 512, 700, len(end) // 2, len(end) - 1, len(end) // 512 * 512):
        bundle.write_bytes(content[:size])
        with pytest.raises(ReleaseError):
            imported(site, bundle)
    assert not (site.folder / "mirror" / "metadata").exists()


def test_an_older_bundle_is_refused(site: Site) -> None:
    old = carried(site, "1.0.0")
    site.publish("1.1.0")
    imported(site, carried(site, "1.1.0", name="new.tar"))
    with pytest.raises(Replayed):
        imported(site, old)


def test_an_expired_or_foreign_bundle_is_refused(site: Site, tmp_path: Path) -> None:
    bundle = carried(site, "1.0.0")
    other = Site(tmp_path / "other")
    with opened(bundle) as source, pytest.raises(WrongSignature):
        take_in(source, site.folder / "mirror", other.first_root, site.now)
    site.later(days=8)
    with pytest.raises(Expired):
        imported(site, bundle)


def _entry(
    name: str, kind: bytes = tarfile.REGTYPE, size: int = 3, link: str = ""
) -> Callable[[tarfile.TarFile], None]:
    def add(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.size, info.linkname = kind, size if kind == tarfile.REGTYPE else 0, link
        tar.addfile(info, io.BytesIO(b"x" * size))

    return add


@pytest.mark.parametrize(
    "add",
    [
        _entry("../escape"),
        _entry("/etc/passwd"),
        _entry("metadata/../../escape"),
        _entry("metadata/9.root.json", tarfile.SYMTYPE, link="/etc/passwd"),
        _entry("metadata/9.root.json", tarfile.LNKTYPE, link="metadata/1.root.json"),
        _entry("metadata/9.root.json", tarfile.CHRTYPE),
        _entry("metadata/9.root.json", tarfile.DIRTYPE),
        _entry("metadata/timestamp.json"),
        _entry("objects/00/" + "1" * 64),
        _entry("releases/tiny/manifest.json"),
        _entry("metadata/" + "9" * 120 + ".root.json"),
    ],
    ids=["up", "absolute", "inner-up", "symlink", "hardlink", "device", "folder", "twice", "shelf", "else", "long"],
)
def test_nothing_but_a_repositorys_files_is_read(site: Site, add: Callable[[tarfile.TarFile], None]) -> None:
    bundle = carried(site, "1.0.0")
    with tarfile.open(bundle, "a") as tar:
        add(tar)
    with pytest.raises(BadBundle):
        imported(site, bundle)
    assert not (site.folder / "escape").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04" + b"x" * 2000, b"\x1f\x8b" + b"x" * 2000, b"x" * 511])
def test_what_is_no_tar_is_refused(site: Site, content: bytes) -> None:
    bundle = site.folder / "b.tar"
    bundle.write_bytes(content)
    with pytest.raises(BadBundle):
        imported(site, bundle)


def test_an_object_of_another_content_is_refused_and_nothing_is_laid(site: Site) -> None:
    bundle = carried(site, "1.0.0")
    content = bundle.read_bytes()
    at = content.index(SHARED)
    bundle.write_bytes(flipped(content, at + 10))
    with pytest.raises(CorruptRelease, match=PLANE_LO.replace(".", r"\.")):
        imported(site, bundle)
    manifest_at = content.index(b'"tokenizer_digest"')
    bundle.write_bytes(flipped(content, manifest_at))
    with pytest.raises(Damaged):
        imported(site, bundle)
    assert not (site.folder / "mirror" / "metadata").exists()
    assert not list((site.folder / "mirror").rglob("objects/*/*"))


def test_a_power_cut_or_a_full_disk_leaves_the_mirror_readable(site: Site) -> None:
    imported(site, carried(site, "1.0.0"))
    site.publish("1.1.0", shared=SHARED)
    bundle = carried(site, "1.1.0")
    mirror = site.folder / "mirror"

    def work(steps: Steps) -> None:
        with opened(bundle) as source:
            take_in(source, mirror, site.first_root, site.now, disk=QuickDisk(steps))

    for step in range(200):
        try:
            work(Steps(step, full))
        except OutOfSpace:
            assert site.node("reader").refresh(FolderSource(mirror), site.now).offers
            if step > 12:
                break
            continue
        break
    for _ in every_cut(work):
        assert site.node("reader").refresh(FolderSource(mirror), site.now).offers
    assert len(site.node("reader").refresh(FolderSource(mirror), site.now).offers) == 2
