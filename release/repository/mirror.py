"""A bundle taken into a folder that nodes are served from: the same checks as on a node, nothing signed.

What was verified before is kept in `<repository>/.trust`, so that an older bundle is refused. Objects come
first, then metadata with its timestamp last: readers see the state before until all is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from release.bundle import Bundle
from release.disk import Disk
from release.manifest import File
from release.objects import METADATA
from release.repository.session import locked
from release.repository.shelf import Shelf, room
from release.trust.catalogue import Catalogue
from release.trust.client import TrustClient

TRUST = ".trust"


@dataclass(frozen=True, slots=True)
class Imported:
    """What a bundle brought, in bytes, and the catalogue it was verified against."""

    releases: tuple[str, ...]
    stored_bytes: int
    shared_bytes: int
    catalogue: Catalogue


def take_in(
    bundle: Bundle,
    repository: Path,
    root: bytes,
    now: datetime,
    *,
    told: Callable[[int], None] = lambda _: None,
    disk: Disk | None = None,
) -> Imported:
    """Raises TrustError, ReleaseError or OSError; what nodes are served is then what it was."""
    disk = disk or Disk()
    with locked(repository, wait_s=60.0), room(repository):
        client = TrustClient(repository / TRUST, root, disk)
        catalogue = client.refresh(bundle, now)
        releases = bundle.releases(catalogue)
        files: dict[str, File] = {}
        for offer, manifest, _content in releases:
            files[offer.sha256] = File("manifest", offer.bytes, offer.sha256, offer.bytes, (offer.sha256,))
            files.update({file.sha256: file for file in manifest.files})
        placed = Shelf(repository, disk).receive(files.values(), bundle.read, told)
        _lay(client.metadata, repository / METADATA, disk)
    return Imported(
        tuple(offer.release for offer, _, _ in releases), placed.stored_bytes, placed.shared_bytes, catalogue
    )


def _lay(verified: Path, metadata: Path, disk: Disk) -> None:
    disk.folder(metadata)
    paths = sorted(verified.glob("*.json"), key=lambda path: (path.name == "timestamp.json", ".root." in path.name))
    for path in paths:
        content = path.read_bytes()
        target = metadata / path.name
        if not target.is_file() or target.read_bytes() != content:
            disk.write(target, content)
