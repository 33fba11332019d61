"""A bundle taken into a node's store, whether the node runs or not: the same checks as over a network.

Metadata is verified against what this store has seen; every chunk against its manifest. A release appears
when all of it is here. A running node finds it at its next look, and puts it on trial like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from release.bundle import Bundle
from release.errors import CorruptRelease
from release.manifest import File, Manifest
from release.partial import WrongChunk
from release.store import Store
from release.trust.catalogue import Catalogue
from release.trust.client import TrustClient

Told = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Taken:
    """What a bundle brought. `stored_bytes` is what was not here before."""

    releases: tuple[str, ...]
    stored_bytes: int
    shared_bytes: int
    catalogue: Catalogue


def take_in(store: Store, bundle: Bundle, root: bytes, now: datetime, *, told: Told = lambda _: None) -> Taken:
    """Blocking. Raises ReleaseError (TrustError, CorruptRelease, OutOfSpace) or OSError; what served is untouched."""
    store.prepare()
    with store.locked("trust"):
        catalogue = TrustClient(store.trust, root).refresh(bundle, now)
    releases = bundle.releases(catalogue)
    stored = total = 0
    with store.locked():
        for offer, manifest, content in releases:
            total += sum(entry.bytes for entry in manifest.files)
            stored += _files(store, bundle, manifest, told)
            store.put(content, offer.sha256)
            store.show(manifest, content)
    return Taken(tuple(offer.release for offer, _, _ in releases), stored, total - stored, catalogue)


def _files(store: Store, bundle: Bundle, manifest: Manifest, told: Told) -> int:
    store.reserve(store.missing(manifest.files))
    stored = 0
    for entry in manifest.files:
        if not store.has(entry):
            _file(store, bundle, entry, told)
            stored += entry.bytes
    return stored


def _file(store: Store, bundle: Bundle, file: File, told: Told) -> None:
    """Goes on where an import that was interrupted stopped; a spoilt tail of it is read again."""
    for again in (True, False):
        with store.partial(file) as partial:
            passed = 0
            try:
                for piece in bundle.read(file):
                    fresh = piece[max(0, partial.have - passed) :]
                    passed += len(piece)
                    told(len(piece))
                    if fresh:
                        partial.append(fresh)
                partial.finish()
                return
            except WrongChunk as error:
                if not (again and error.kept_tail):
                    raise CorruptRelease(f"the bundle's {error}; copy it again, or export it again") from error
    raise CorruptRelease(f"{file.name} could not be taken from the bundle")
