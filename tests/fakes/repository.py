"""A publisher's desk in a temporary folder: keys, repository, small releases, and a clock that is set by hand."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from pathlib import Path

from release.disk import Disk
from release.folder import describe_file
from release.manifest import MANIFEST_NAME, PLANE_LO, Manifest, QualityFigure, SelfTest, read, write
from release.repository.ceremony import begin, trusted_root
from release.repository.keys import Keys
from release.repository.publish import Published, publish, refresh
from release.repository.record import Days
from release.repository.session import Desk
from release.trust.client import FolderSource, TrustClient
from tests.fakes.disk import QuickDisk
from tests.fakes.releases import write_release

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def measured_release(folder: Path, name: str = "tiny", version: str = "1.0.0", shared: bytes = b"") -> Manifest:
    """A release folder with figures and self-tests; `shared` is the content of a file that versions have in common."""
    manifest = write_release(folder, name, version)
    if shared:
        (folder / PLANE_LO).write_bytes(shared)
    manifest = dataclasses.replace(
        manifest,
        files=tuple(describe_file(folder / file.name) for file in manifest.files),
        quality=tuple(QualityFigure("kl", 0.01, bits, 10, 1, "0" * 64, "x86-64-v3") for bits in (4, 8)),
        self_tests=tuple(SelfTest(bits, (1, 2), (3,), (0.5,), "x86-64-v3", 0.01, 0.1) for bits in (4, 8)),
    )
    text = write(manifest)
    (folder / MANIFEST_NAME).write_text(text)
    return read(text)


class Site:
    """`folder` holds keys/, root-keys/, repository/ and releases/."""

    def __init__(self, folder: Path, now: datetime = NOON, root_count: int = 1, root_threshold: int = 1) -> None:
        self.folder, self.now = folder, now
        self.repository = folder / "repository"
        self.keys = Keys(folder / "keys", (folder / "root-keys",), disk=QuickDisk())
        self.disk: Disk = QuickDisk()
        begin(self.desk, Days(), root_count, root_threshold)
        self.first_root = trusted_root(self.repository)[1]

    @property
    def desk(self) -> Desk:
        return Desk(self.repository, self.keys, self.now, wait_s=5.0, disk=self.disk)

    def later(self, **span: float) -> None:
        self.now += timedelta(**span)

    def release(self, version: str = "1.0.0", name: str = "tiny", shared: bytes = b"") -> Path:
        folder = self.folder / "releases" / f"{name}-{version}"
        measured_release(folder, name, version, shared)
        return folder

    def publish(self, version: str = "1.0.0", name: str = "tiny", shared: bytes = b"") -> Published:
        return publish(self.desk, self.release(version, name, shared))

    def refresh(self) -> None:
        refresh(self.desk)

    def source(self) -> FolderSource:
        return FolderSource(self.repository)

    def node(self, name: str = "node", root: bytes | None = None) -> TrustClient:
        return TrustClient(self.folder / name, root or self.first_root, QuickDisk())
