"""What a verified repository offers: releases, with what is needed to check their manifests.

An offer vouches for a manifest's length and hash; the manifest vouches for every file. Pure: no
I/O, no clock, no tuf.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from release.document import DocumentError, parse
from release.errors import ManifestError
from release.manifest import Manifest, check_identity, read
from release.objects import object_path
from release.trust.errors import Damaged, Malformed, MixedMetadata

MOST_MANIFEST_BYTES = 16 << 20
Content = bytes  # the classes here have a field of that name

_PATH = re.compile(r"([^/]+)/([^/]+)/manifest\.json")
_NUMBERS = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:-(.+))?")


@dataclass(frozen=True, slots=True)
class Offer:
    """A signed release. `bytes` and `sha256` are of its manifest, `total_bytes` of all its files together.

    `task` is what its model does, so that a node fetches only what it can serve; offers from before it was said
    are of models that write text, or do not tell.
    """

    model: str
    version: str
    release: str
    sha256: str
    bytes: int
    total_bytes: int
    precisions: tuple[int, ...]
    published: datetime
    task: str = "generate"

    @property
    def path(self) -> str:
        """Where the manifest lies below the repository."""
        return object_path(self.sha256)

    def manifest(self, content: Content) -> Manifest:
        """The manifest in `content`. Raises Damaged, MixedMetadata or ManifestError unless it is the one signed for."""
        if len(content) != self.bytes or hashlib.sha256(content).hexdigest() != self.sha256:
            raise Damaged(
                f"the manifest of {self.release} is not the one signed ({len(content)} bytes, not {self.bytes}): "
                "it was damaged on its way or altered; fetch it again, from another source if it stays so"
            )
        manifest = read(content)
        said = (manifest.id, manifest.name, manifest.version, manifest.precisions, _total(manifest))
        wanted = (self.release, self.model, self.version, self.precisions, self.total_bytes)
        if said != wanted or self.task not in ("generate", manifest.task):
            raise MixedMetadata(
                f"the catalogue signs {self.release} with another name, version, task, precisions or size than its "
                "manifest has: publish the release again"
            )
        return manifest


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What was verified together.

    `expires` is the earliest date of its parts. `versions` are the numbers of root, timestamp, snapshot and
    targets. `clock` is empty, or says why the time that was signed was taken instead of the box's own.
    """

    issued: datetime
    expires: datetime
    offers: tuple[Offer, ...]
    withdrawn: frozenset[str]
    versions: Mapping[str, int]
    clock: str = ""

    def newest(self, model: str) -> Offer | None:
        """The offer of `model` with the highest semantic version; of equal ones, the one published last."""
        found = [offer for offer in self.offers if offer.model == model]
        return max(found, key=lambda offer: (precedence(offer.version), offer.published), default=None)

    def offer(self, release: str) -> Offer | None:
        """The offer of that release id."""
        return next((offer for offer in self.offers if offer.release == release), None)


def precedence(version: str) -> tuple[Any, ...]:
    """Orders semantic versions: a pre-release comes before its release, numbers count as numbers."""
    found = _NUMBERS.fullmatch(version)
    if found is None:
        return (0, 0, 0, 0, ())
    *numbers, label = found.groups()
    parts = tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in (label or "").split("."))
    return (*map(int, numbers), 0 if label else 1, parts if label else ())


@dataclass(frozen=True, slots=True)
class Custom:
    """What targets metadata says of a manifest beside its length and hash."""

    model: str
    version: str
    release: str
    precisions: tuple[int, ...]
    bytes: int
    published: str
    withdrawn: bool = False
    task: str = "generate"


def target_path(model: str, release: str) -> str:
    """The name under which a release's manifest is signed."""
    return f"{model}/{release}/manifest.json"


def read_offers(entries: Iterable[tuple[str, int, Mapping[str, str], object]]) -> tuple[list[Offer], frozenset[str]]:
    """Offers and withdrawn ids of signed (path, length, hashes, custom). Paths of another kind are passed over.

    Raises Malformed.
    """
    offers, withdrawn = [], set()
    for path, length, hashes, custom in sorted(entries, key=lambda entry: entry[0]):
        if not _PATH.fullmatch(path):
            continue
        try:
            said = parse(Custom, custom)
            if path != target_path(said.model, said.release) or not 0 < length <= MOST_MANIFEST_BYTES:
                raise DocumentError(f"it is signed for {said.release} with {length} bytes")
            check_identity(said.model, said.version)
            object_path(hashes.get("sha256", ""))
            published = instant(said.published)
        except (ValueError, ManifestError) as error:
            raise Malformed(f"the signed entry {path} cannot be read ({error}): publish the release again") from error
        if said.withdrawn:
            withdrawn.add(said.release)
            continue
        offers.append(
            Offer(
                said.model, said.version, said.release, hashes["sha256"], length, said.bytes, said.precisions,
                published, said.task,
            )
        )  # fmt: skip
    return offers, frozenset(withdrawn)


def instant(text: str) -> datetime:
    """A moment written as ISO 8601 with its zone. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return moment


def _total(manifest: Manifest) -> int:
    return sum(file.bytes for file in manifest.files)
