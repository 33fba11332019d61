"""A repository in one file, to be carried where no network goes.

A plain tar (ustar) of what a static server would serve: all metadata, then the objects of the chosen
releases, under the same paths. Whoever reads it takes metadata through release.trust, as from any other
source, and checks every object against the manifest: the bundle itself is believed in nothing.

The reader is strict and our own: regular files only, with a path that a repository has, each once, sizes
within the file; no links, no extensions, nothing is ever written to a path that the bundle chose.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from release.errors import CorruptRelease, ReleaseError
from release.manifest import File, Manifest
from release.objects import METADATA, is_metadata, object_digest, object_path
from release.trust.catalogue import Catalogue, Offer
from release.trust.errors import Absent, FetchFailed, TooLong
from release.trust.kept import Files

MOST_MEMBERS = 100_000
MOST_MEMBER_BYTES = 8**11 - 1  # what ustar's size field holds: 8 GiB
_BLOCK = 512
_READ_BYTES = 1 << 20

Told = Callable[[int], None]


class BadBundle(ReleaseError):
    """The file is no bundle, or it was cut or altered."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What went into a bundle."""

    releases: tuple[str, ...]
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Member:
    offset: int
    size: int


def export(
    repository: Path,
    roots: Mapping[int, bytes],
    files: Files,
    releases: Sequence[tuple[Offer, Manifest]],
    out: BinaryIO,
    *,
    told: Told = lambda _: None,
) -> Exported:
    """Writes a bundle of verified releases and of the metadata that offers them. Objects are checked as they go in.

    Raises CorruptRelease, BadBundle, OSError.
    """
    digests = dict.fromkeys(offer.sha256 for offer, _ in releases)
    for _, manifest in releases:
        digests.update(dict.fromkeys(file.sha256 for file in manifest.files))
    metadata = {f"{version}.root.json": content for version, content in roots.items()}
    metadata |= dict(zip(files.names, (files.snapshot, files.targets), strict=True))
    metadata["timestamp.json"] = files.timestamp
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in metadata.items():
            tar.addfile(_header(f"{METADATA}/{name}", len(content)), io.BytesIO(content))
        for sha256 in digests:
            _add(tar, repository / object_path(sha256), sha256, told)
    return Exported(tuple(offer.release for offer, _ in releases), len(metadata) + len(digests), out.tell())


class Bundle:
    """An open bundle: a release.trust.source.Fetch for its metadata, and a source of its objects."""

    def __init__(self, file: BinaryIO, members: dict[str, _Member]) -> None:
        self._file, self._members = file, members

    def __call__(self, path: str, most_bytes: int) -> bytes:
        """A small file. Raises Absent, TooLong, FetchFailed."""
        member = self._members.get(path)
        if member is None:
            raise Absent(f"the bundle has no {path}")
        if member.size > most_bytes:
            raise TooLong(f"{path} in the bundle is longer than the {most_bytes} bytes it may have")
        self._file.seek(member.offset)
        content = self._file.read(member.size)
        if len(content) != member.size:
            raise FetchFailed(f"the bundle ends in the middle of {path}: copy it again")
        return content

    def has(self, sha256: str) -> bool:
        return object_path(sha256) in self._members

    def read(self, file: File) -> Iterator[bytes]:
        """An object piece by piece, from its beginning; the receiver checks it. Raises CorruptRelease."""
        member = self._members.get(object_path(file.sha256))
        if member is None or member.size != file.bytes:
            raise CorruptRelease(f"the bundle lacks {file.name} ({file.sha256}), or has it in another length")
        self._file.seek(member.offset)
        left = member.size
        while left:
            piece = self._file.read(min(left, _READ_BYTES))
            if not piece:
                raise CorruptRelease(f"the bundle ends in the middle of {file.name}: copy it again")
            left -= len(piece)
            yield piece

    def releases(self, catalogue: Catalogue) -> list[tuple[Offer, Manifest, bytes]]:
        """The offers whose files all lie in here, with their checked manifests. Raises a ReleaseError for altered "
        "ones."""
        found = []
        for offer in catalogue.offers:
            if not self.has(offer.sha256):
                continue
            content = self(offer.path, offer.bytes)
            manifest = offer.manifest(content)
            if missing := [file.name for file in manifest.files if not self.has(file.sha256)]:
                raise CorruptRelease(f"the bundle has {offer.release} without {', '.join(missing)}: export it again")
            found.append((offer, manifest, content))
        return found


@contextmanager
def opened(path: Path) -> Iterator[Bundle]:
    """A bundle for reading. Raises BadBundle, OSError."""
    with path.open("rb") as file:
        yield Bundle(file, dict(_members(file, path)))


def _members(file: BinaryIO, path: Path) -> Iterator[tuple[str, _Member]]:
    end = path.stat().st_size
    seen: set[str] = set()
    offset = 0
    while True:
        header = file.read(_BLOCK)
        if len(header) < _BLOCK:
            raise BadBundle(f"{path} ends at byte {offset} without its end mark: it was cut short, copy it again")
        if not header.strip(b"\0"):
            return
        name, size = _parsed(header, path, offset)
        if name in seen or len(seen) >= MOST_MEMBERS:
            raise BadBundle(f"{path} holds {name} twice, or more than {MOST_MEMBERS} files: it was not made by Weir")
        if offset + _BLOCK + size > end:
            raise BadBundle(f"{path} ends in the middle of {name}: it was cut short, copy it again")
        seen.add(name)
        yield name, _Member(offset + _BLOCK, size)
        offset += _BLOCK + -(-size // _BLOCK) * _BLOCK
        file.seek(offset)


def _parsed(header: bytes, path: Path, offset: int) -> tuple[str, int]:
    wrong = BadBundle(f"{path} is no bundle of Weir's, or was altered, at byte {offset}: export it again")
    total = sum(header) - sum(header[148:156]) + 8 * 32
    try:
        name = header[:100].rstrip(b"\0").decode("ascii")
        size = int(header[124:136].strip(b" \0"), 8)
        said = int(header[148:156].strip(b" \0"), 8)
    except (UnicodeDecodeError, ValueError):
        raise wrong from None
    plain_file = header[156:157] in (b"0", b"\0") and header[257:262] == b"ustar" and not header[345:500].strip(b"\0")
    if said != total or size < 0 or not plain_file or not (is_metadata(name) or object_digest(name)):
        raise wrong
    return name, size


def _header(name: str, size: int) -> tarfile.TarInfo:
    """Nothing of this box: the same releases make the same bundle."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info


def _add(tar: tarfile.TarFile, path: Path, sha256: str, told: Told) -> None:
    try:
        size = path.stat().st_size
    except FileNotFoundError as error:
        raise CorruptRelease(f"{path} is missing: publish its release again") from error
    if size > MOST_MEMBER_BYTES:
        raise BadBundle(f"{path} has {size} bytes; a bundle carries files of at most {MOST_MEMBER_BYTES}")
    with path.open("rb") as file:
        reader = _Counted(file, told)
        tar.addfile(_header(object_path(sha256), size), reader)
    if reader.digest.hexdigest() != sha256:
        raise CorruptRelease(f"{path} is damaged: publish its release again, which replaces it")


class _Counted(io.RawIOBase):
    """Passes a file on, hashing it."""

    def __init__(self, file: BinaryIO, told: Told) -> None:
        self._file, self._told = file, told
        self.digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        piece = self._file.read(size)
        self.digest.update(piece)
        self._told(len(piece))
        return piece
