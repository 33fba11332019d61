"""A node's store of releases: content-addressed files, and folders that hard-link them.

    objects/<aa>/<sha256>     complete and verified, read-only, each kept once however many releases share it
    partial/<sha256>          being received (release.partial)
    releases/<release id>/    manifest.json and links to objects: an ordinary release folder
    releases/.<release id>/   the same, not yet enough of it to serve

Invariants: an object has had its whole hash verified before it got its name; only objects are linked; a
release folder appears, under its name, at once and with everything its lightest precision needs; the
rest is linked into it later. A power cut between any two steps leaves that true. `release.disk` does all
writing. Blocking: call it in a thread. Must not know where files come from, nor which release is wanted.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from release.disk import Disk
from release.errors import CorruptRelease, OutOfSpace, ReleaseError
from release.listing import Found, list_releases, read_manifest
from release.manifest import MANIFEST_NAME, PLANE_LO, File, Manifest, graph_name
from release.objects import OBJECTS, object_path
from release.partial import Partial, out_of_space

PARTIAL, RELEASES, TRUST = "partial", "releases", "trust"


def free_bytes(path: Path) -> int:
    """What an ordinary user may still write on the disk that holds `path`."""
    state = os.statvfs(path)
    return state.f_bavail * state.f_frsize


def first_part(manifest: Manifest) -> tuple[File, ...]:
    """The files without which a release cannot serve at all: those of its lightest precision, tokenizer and all."""
    second = {entry.name for entry in second_part(manifest)}
    return tuple(entry for entry in manifest.files if entry.name not in second)


def second_part(manifest: Manifest) -> tuple[File, ...]:
    """What makes a 4-bit release an 8-bit one; empty where there is nothing to add."""
    if 4 not in manifest.precisions:
        return ()
    return tuple(entry for entry in manifest.files if entry.name in (graph_name(8), PLANE_LO))


class Store:
    """One store folder. Several processes may read it; who writes takes `locked` around what must not interleave."""

    def __init__(
        self,
        root: Path,
        keep_free_bytes: int = 0,
        disk: Disk | None = None,
        free: Callable[[Path], int] = free_bytes,
        writer: str = "",
    ) -> None:
        """`writer` keeps the partial files of two processes apart."""
        self.root = root
        self.releases, self.trust = root / RELEASES, root / TRUST
        self._disk, self._free, self._keep_free_bytes = disk or Disk(), free, keep_free_bytes
        self._suffix = f".{writer}" if writer else ""

    def prepare(self) -> None:
        """Makes the folders. Raises OSError."""
        for folder in (self.root, self.root / OBJECTS, self.root / PARTIAL, self.releases, self.trust):
            self._disk.folder(folder)

    @contextlib.contextmanager
    def locked(self, what: str = "") -> Iterator[None]:
        """Waits for every other process that adds releases to this store or clears it up.

        `trust` is a lock of its own, for the metadata.
        """
        with (self.root / f".{what}{'.' if what else ''}lock").open("ab") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    # --- objects

    def object(self, sha256: str) -> Path:
        return self.root / object_path(sha256)

    def has(self, file: File) -> bool:
        """Whether the file's content is here, verified when it came."""
        try:
            return self.object(file.sha256).stat().st_size == file.bytes
        except OSError:
            return False

    def missing(self, files: Iterable[File]) -> int:
        """Bytes still to be received of these files; what is on its way counts up to its last whole chunk."""
        distinct = {entry.sha256: entry for entry in files}.values()
        return sum(entry.bytes - self._underway(entry) for entry in distinct if not self.has(entry))

    def reserve(self, count: int) -> None:
        """Raises OutOfSpace unless the disk takes `count` more bytes and keeps what must stay free."""
        free = self._free(self.root)
        short = count + self._keep_free_bytes - free
        if short > 0:
            raise OutOfSpace(
                f"{count} bytes are needed in {self.root} and {free} are free, of which {self._keep_free_bytes} must "
                f"stay free (keep_free_bytes): {short} bytes are lacking"
            )

    def spare(self) -> int:
        """Bytes that may still be written."""
        return max(0, self._free(self.root) - self._keep_free_bytes)

    def partial(self, file: File) -> Partial:
        """The file as far as it has come. Verifies what lies here: takes a while for a large one."""
        target = self.object(file.sha256)
        with out_of_space(target):
            for folder in (target.parent, self.root / PARTIAL):  # somebody may have emptied the store meanwhile
                self._disk.folder(folder)
            return Partial(self._partial_path(file), target, file, self._disk)

    def put(self, content: bytes, sha256: str) -> Path:
        """A small file, such as a manifest, as an object. Raises CorruptRelease for other content than that."""
        if hashlib.sha256(content).hexdigest() != sha256:
            raise CorruptRelease(f"what came for {sha256} has another hash")
        target = self.object(sha256)
        with out_of_space(target):
            if target.exists() and _sha256(target) != sha256:  # rotten: releases that link it keep theirs
                self._disk.remove(target)
            if not target.exists():
                self._disk.folder(target.parent)
                self._disk.write(target, content)
        return target

    # --- releases

    def folder(self, release: str) -> Path:
        """Where a release lies once it can serve."""
        return self.releases / _folder_name(release)

    def found(self) -> tuple[Found, ...]:
        """The releases that can serve, at their lightest precision at least."""
        try:
            return list_releases(self.releases).found
        except ReleaseError:
            return ()

    def manifest(self, release: str) -> Manifest | None:
        """The manifest of a release that can serve."""
        try:
            return read_manifest(self.folder(release))
        except ReleaseError:
            return None

    def content(self, release: str) -> tuple[bytes, str] | None:
        """The text of its manifest, with the hash of that."""
        try:
            content = (self.folder(release) / MANIFEST_NAME).read_bytes()
        except OSError:
            return None
        return content, hashlib.sha256(content).hexdigest()

    def complete(self, release: str, files: Iterable[File]) -> bool:
        """Whether these files are linked into the release."""
        folder = self.folder(release)
        return all((folder / entry.name).is_file() for entry in files)

    def show(self, manifest: Manifest, content: bytes) -> Path:
        """Makes a release of the objects that are here, or links what has come since. `content` is the manifest's text.

        Raises CorruptRelease while its first part is not complete, OutOfSpace.
        """
        lacking = [entry.name for entry in first_part(manifest) if not self.has(entry)]
        if lacking:
            raise CorruptRelease(f"release {manifest.id} cannot serve yet: {', '.join(lacking)} is not here")
        folder = self.folder(manifest.id)
        with out_of_space(folder):
            if (folder / MANIFEST_NAME).is_file():
                if (folder / MANIFEST_NAME).read_bytes() != content:  # rotten: a release nobody can read
                    self._disk.remove(folder / MANIFEST_NAME)
                    self._disk.link(self.put(content, hashlib.sha256(content).hexdigest()), folder / MANIFEST_NAME)
                self._link(manifest, folder)
                return folder
            draft = self._draft(manifest.id)
            self._disk.folder(draft)
            self._link(manifest, draft)
            self._disk.link(self.put(content, hashlib.sha256(content).hexdigest()), draft / MANIFEST_NAME)
            self._disk.sync_folder(draft)
            if folder.exists():  # what a cut left of a removal
                self._remove_folder(folder)
            self._disk.move(draft, folder)
        return folder

    def link(self, release: str, file: File) -> None:
        """Adds one file to a release that can serve. Raises CorruptRelease unless both are here."""
        if not self.has(file) or not self.folder(release).is_dir():
            raise CorruptRelease(f"{file.name} of {release} is not here")
        with out_of_space(self.root):
            self._disk.link(self.object(file.sha256), self.folder(release) / file.name)
            self._disk.sync_folder(self.folder(release))

    def _link(self, manifest: Manifest, folder: Path) -> None:
        for entry in manifest.files:
            if self.has(entry):
                self._disk.link(self.object(entry.sha256), folder / entry.name)
        self._disk.sync_folder(folder)

    def drop_damaged(self, manifest: Manifest) -> tuple[str, ...]:
        """Reads a release's files again; those that no longer have their hash go. Their names."""
        gone = []
        for entry in manifest.files:
            path = self.object(entry.sha256)
            if path.exists() and _sha256(path) != entry.sha256:
                self._disk.remove(self.folder(manifest.id) / entry.name)
                self._disk.remove(path)
                gone.append(entry.name)
        return tuple(gone)

    # --- clearing up

    def collect(
        self,
        keep: Iterable[str],
        wanted: Manifest | None = None,
        objects: Iterable[str] = (),
        also: Iterable[Manifest] = (),
    ) -> int:
        """Removes every release but those in `keep`, and every file that neither they, `wanted`, `also` nor
        `objects` name.

        Of a kept release whose manifest cannot be read, the files it links stay. Returns the bytes that became free.
        """
        kept = {_folder_name(release) for release in keep}
        coming = [*also, *([wanted] if wanted is not None else [])]
        drafts = {f".{_folder_name(manifest.id)}" for manifest in coming}
        before = self._bytes()
        for folder in self._children(self.releases):
            if folder.name not in kept | drafts:
                self._remove_folder(folder)
        needed = {*objects, *(entry.sha256 for manifest in coming for entry in manifest.files)}
        linked: set[int] = set()
        for folder in self._children(self.releases):
            if not folder.name.startswith("."):
                try:
                    needed |= _named_by(folder)
                except ReleaseError:
                    linked |= {path.stat().st_ino for path in self._children(folder)}
        for path in self._children(self.root / PARTIAL):
            if path.name.split(".")[0] not in needed:
                self._disk.remove(path)
        for shelf in self._children(self.root / OBJECTS):
            for path in self._children(shelf):
                if path.name not in needed and path.stat().st_ino not in linked:
                    self._disk.remove(path)
        return max(0, before - self._bytes())

    def _remove_folder(self, folder: Path) -> None:
        """The manifest goes first: without one it is no release."""
        self._disk.remove(folder / MANIFEST_NAME)
        for path in self._children(folder):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                self._disk.remove(path)
        self._disk.remove(folder)

    def _children(self, folder: Path) -> list[Path]:
        return sorted(folder.iterdir()) if folder.is_dir() else []

    def _bytes(self) -> int:
        objects = (path for shelf in self._children(self.root / OBJECTS) for path in self._children(shelf))
        return sum(path.stat().st_size for path in (*objects, *self._children(self.root / PARTIAL)))

    def _underway(self, file: File) -> int:
        try:
            size = min(self._partial_path(file).stat().st_size, file.bytes)
        except OSError:
            return 0
        return size if size == file.bytes else size - size % file.chunk_bytes

    def _partial_path(self, file: File) -> Path:
        return self.root / PARTIAL / f"{file.sha256}{self._suffix}"

    def _draft(self, release: str) -> Path:
        return self.releases / f".{_folder_name(release)}"


def _folder_name(release: str) -> str:
    """A release's id as a name in a folder. Raises CorruptRelease for one that would lead elsewhere."""
    if not release or "/" in release or "\0" in release or release.startswith("."):
        raise CorruptRelease(f"{release!r} is not a release id")
    return release


def _named_by(folder: Path) -> set[str]:
    """The objects that a release folder holds."""
    manifest = read_manifest(folder)
    return {_sha256(folder / MANIFEST_NAME), *(entry.sha256 for entry in manifest.files)}


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
