"""Releases of a repository in a folder, written into a bundle; and whether all of a release is there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from release.bundle import Exported, export
from release.errors import CorruptRelease, ReleaseError
from release.manifest import Manifest
from release.objects import object_path
from release.repository.errors import NotFit
from release.repository.shelf import room
from release.repository.state import roots_in
from release.repository.status import listed
from release.trust.catalogue import Offer


def write_bundle(
    repository: Path,
    wanted: Sequence[str],
    out: Path,
    trusted: bytes | None,
    *,
    told: Callable[[int], None] = lambda _: None,
) -> tuple[Exported, datetime]:
    """Writes `out` whole or not at all. Returns also until when nodes accept it.

    Raises NotFit for a release that is not offered, CorruptRelease, OutOfSpace, OSError.
    """
    state, offers, _ = listed(repository, trusted)
    known = {offer.release: offer for offer in offers}
    if unknown := [release for release in wanted if release not in known]:
        raise NotFit(f"{repository} does not offer {', '.join(unknown)}; it offers: {', '.join(known) or 'nothing'}")
    releases = [(known[release], manifest_of(repository, known[release])) for release in dict.fromkeys(wanted)]
    handle, draft = tempfile.mkstemp(prefix=f".{out.name}.", dir=out.parent)
    try:
        with room(out), os.fdopen(handle, "wb") as file:
            done = export(repository, roots_in(repository), state.files, releases, file, told=told)
            file.flush()
            os.fsync(file.fileno())
            Path(draft).chmod(0o644)
            Path(draft).replace(out)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(draft).unlink()
        raise
    return done, min(part.expires for part in (state.root, state.timestamp, state.snapshot, state.targets))


def manifest_of(repository: Path, offer: Offer) -> Manifest:
    """The checked manifest of an offer. Raises ReleaseError."""
    try:
        content = (repository / offer.path).read_bytes()
    except FileNotFoundError as error:
        raise CorruptRelease(f"{repository / offer.path} is missing: publish {offer.release} again") from error
    return offer.manifest(content)


def complete(repository: Path, offer: Offer) -> bool:
    """Whether all files of an offer lie in the repository, by their names: a mirror need not have all that is "
    "signed."""
    try:
        manifest = manifest_of(repository, offer)
    except ReleaseError:
        return False
    return all((repository / object_path(file.sha256)).is_file() for file in manifest.files)
