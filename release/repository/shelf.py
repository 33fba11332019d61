"""The objects of a repository: put in whole, verified, and once.

New files are copied beside the repository's own first and verified on the way; only when all of them are
there are they renamed into place. Whatever goes wrong before leaves the repository as it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from release.disk import Disk
from release.errors import CorruptRelease, OutOfSpace
from release.folder import verify_file
from release.manifest import File
from release.objects import object_path
from release.partial import FULL

STAGING = ".staging"
_MARGIN_BYTES = 16 << 20
_COPY_BYTES = 1 << 20

Told = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Placed:
    """What was new, and what lay there before, in bytes."""

    stored_bytes: int
    shared_bytes: int
    new: tuple[Path, ...]

    def undo(self) -> None:
        """Takes back what was new."""
        for path in self.new:
            with contextlib.suppress(OSError):
                path.unlink()


class Shelf:
    """The folder `objects/` of a repository. One writer at a time."""

    def __init__(self, repository: Path, disk: Disk) -> None:
        self._repository, self._disk = repository, disk

    def has(self, sha256: str) -> bool:
        """Whether there is an object of that name; does not read it."""
        return (self._repository / object_path(sha256)).is_file()

    def place(self, sources: Mapping[Path, File], told: Told, link: bool = False) -> Placed:
        """Puts files in by their content. Raises CorruptRelease, OutOfSpace or OSError; then nothing has changed.

        With `link` a new object is the source's own file under a second name: quick, and changed with it.
        """
        with room(self._repository), self._staging() as staging:
            missing, shared = self._split(sources, told)
            self._demand(0 if link else sum({file.sha256: file.bytes for file in missing.values()}.values()))
            drafts: dict[str, Path] = {}
            for source, file in missing.items():
                if file.sha256 in drafts:
                    verify_file(source, file)
                    told(file.bytes)
                    continue
                drafts[file.sha256] = staging / file.sha256
                if link:
                    self._disk.link(source, drafts[file.sha256])
                    verify_file(source, file)  # the same bytes, under the name that the user knows
                    told(file.bytes)
                else:
                    self._copy(source, drafts[file.sha256], file, told)
            return self._move(drafts, shared)

    def receive(self, files: Iterable[File], read: Callable[[File], Iterable[bytes]], told: Told) -> Placed:
        """Puts in what is missing of `files`, from pieces that are not believed. Raises as `place` does."""
        with room(self._repository), self._staging() as staging:
            distinct = {file.sha256: file for file in files}
            missing = {sha256: file for sha256, file in distinct.items() if not self.has(sha256)}
            self._demand(sum(file.bytes for file in missing.values()))
            for sha256, file in missing.items():
                if self._write(read(file), staging / sha256, told) != sha256:
                    raise CorruptRelease(f"{file.name} came with another hash than promised: bring it again")
            shared = sum(file.bytes for sha256, file in distinct.items() if sha256 not in missing)
            told(shared)
            return self._move({sha256: staging / sha256 for sha256 in missing}, shared)

    def _split(self, sources: Mapping[Path, File], told: Told) -> tuple[dict[Path, File], int]:
        """What is missing, and how many bytes are not. A damaged object counts as missing: it is replaced."""
        missing: dict[Path, File] = {}
        shared = 0
        for source, file in sources.items():
            if not self.has(file.sha256):
                missing[source] = file
                continue
            verify_file(source, file)
            try:
                verify_file(self._repository / object_path(file.sha256), file)
            except CorruptRelease:
                missing[source] = file
                continue
            shared += file.bytes
            told(file.bytes)
        return missing, shared

    def _copy(self, source: Path, draft: Path, file: File, told: Told) -> None:
        with source.open("rb") as reader:
            digest = self._write(iter(lambda: reader.read(_COPY_BYTES), b""), draft, told)
        if digest != file.sha256:
            verify_file(source, file)  # says where it is damaged
            raise CorruptRelease(f"{source} changed while it was read: publish it again when nothing writes to it")

    def _write(self, pieces: Iterable[bytes], draft: Path, told: Told) -> str:
        """Returns the SHA-256 of what is on disk then."""
        digest = hashlib.sha256()
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            for piece in pieces:
                digest.update(piece)
                self._disk.append(descriptor, memoryview(piece), draft)
                told(len(piece))
            self._disk.sync(descriptor, draft)
        finally:
            os.close(descriptor)
        return digest.hexdigest()

    def _move(self, drafts: Mapping[str, Path], shared: int) -> Placed:
        new: list[Path] = []
        stored = 0
        try:
            for sha256, draft in drafts.items():
                place = self._repository / object_path(sha256)
                self._disk.folder(place.parent)
                stored += draft.stat().st_size
                if not place.exists():
                    new.append(place)
                self._disk.move(draft, place)
        except BaseException:
            Placed(0, 0, tuple(new)).undo()
            raise
        return Placed(stored, shared, tuple(new))

    @contextlib.contextmanager
    def _staging(self) -> Iterator[Path]:
        staging = self._repository / STAGING
        shutil.rmtree(staging, ignore_errors=True)  # of a publisher that was killed: the lock is ours now
        self._disk.folder(staging)
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _demand(self, needed: int) -> None:
        free = shutil.disk_usage(self._repository).free
        if needed and free < needed + _MARGIN_BYTES:
            raise OutOfSpace(
                f"{self._repository} needs {needed + _MARGIN_BYTES} bytes more and {free} are free: make room and "
                "publish again; nothing was changed"
            )


@contextlib.contextmanager
def room(place: Path) -> Iterator[None]:
    """Turns what the system says of a full disk into OutOfSpace."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise OutOfSpace(
            f"the disk of {place} is full: free some space and do it again; nothing was changed"
        ) from error
