"""A file on its way in: chunks are verified as they fill, and what stands on disk is taken up again.

Bytes are written as they come. A chunk counts once it has the hash the manifest promises; one that has
not is cut off again. What a killed process left behind is read back: whole chunks are verified anew, and
the tail of an unfinished one is kept on trust until its chunk is full, so that an interruption costs
nothing and a spoilt tail one chunk. Nothing in here is linked into a release before `finish`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from release.disk import Disk
from release.errors import CorruptRelease, OutOfSpace
from release.manifest import File

FULL = (errno.ENOSPC, errno.EDQUOT)
_READ_BYTES = 1 << 20


class WrongChunk(CorruptRelease):
    """A chunk has another hash than promised. `kept_tail`: its beginning was left by an earlier attempt."""

    def __init__(self, message: str, *, kept_tail: bool) -> None:
        super().__init__(message)
        self.kept_tail = kept_tail


class Partial:
    """One file being received. A context manager; not for two threads at a time.

    `have` counts the bytes on disk that stand, `verified` those in whole verified chunks.
    """

    def __init__(self, path: Path, target: Path, file: File, disk: Disk) -> None:
        self.file = file
        self.have = self.verified = 0
        self._path, self._target, self._disk = path, target, disk
        self._chunk, self._whole = hashlib.sha256(), hashlib.sha256()
        self._whole_verified = self._whole.copy()
        self._kept_tail = False
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._take_up()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """What was received stays, to be taken up another time."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def missing(self) -> int:
        """Bytes still to come."""
        return self.file.bytes - self.have

    @property
    def to_chunk_end(self) -> int:
        """Bytes until the chunk in work is full; 0 when the file is."""
        return min(self.verified + self.file.chunk_bytes, self.file.bytes) - self.have

    def append(self, data: bytes) -> None:
        """The next bytes of the file.

        Raises WrongChunk (the chunk is cut off again), CorruptRelease for more bytes than the file has, OutOfSpace.
        """
        if len(data) > self.missing:
            raise CorruptRelease(f"{self.file.name}: more bytes came than the {self.file.bytes} it has")
        view = memoryview(data)
        while view:
            piece, view = view[: self.to_chunk_end], view[self.to_chunk_end :]
            self._write(piece)
            self._take(piece)
            if self.to_chunk_end == 0:
                self._close_chunk()

    def finish(self) -> Path:
        """Moves the complete file among the verified ones. Raises CorruptRelease when it is not whole, OutOfSpace."""
        if self.verified != self.file.bytes:
            raise CorruptRelease(f"{self.file.name} has {self.have} of {self.file.bytes} bytes")
        if self._whole.hexdigest() != self.file.sha256:
            self._back_to(0)
            raise CorruptRelease(
                f"{self.file.name}: every chunk is right and the whole is not: the manifest contradicts itself; "
                "publish the release again"
            )
        with out_of_space(self._path):
            os.fchmod(self._descriptor, 0o444)
            self._disk.sync(self._descriptor, self._path)
            self.close()
            self._disk.move(self._path, self._target)
        return self._target

    def _take_up(self) -> None:
        """Verifies what lies there and goes to where the next byte belongs."""
        size = os.fstat(self._descriptor).st_size
        while self.have < min(size, self.file.bytes):
            self._take_stored(min(self.to_chunk_end, size - self.have))
            if self.to_chunk_end == 0:
                if not self._chunk_is_right():
                    break
                self._keep_chunk()
            else:
                self._kept_tail = True  # the file ends within a chunk
        if self._kept_tail or self.have == self.verified == size:
            os.lseek(self._descriptor, self.have, os.SEEK_SET)
        else:
            self._back_to(self.verified)

    def _take_stored(self, count: int) -> None:
        while count > 0:
            data = os.read(self._descriptor, min(count, _READ_BYTES))
            if not data:
                raise CorruptRelease(f"{self._path} became shorter while it was read: is another process writing it?")
            self._take(memoryview(data))
            count -= len(data)

    def _take(self, piece: memoryview) -> None:
        self._chunk.update(piece)
        self._whole.update(piece)
        self.have += len(piece)

    def _write(self, piece: memoryview) -> None:
        try:
            self._disk.append(self._descriptor, piece, self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._disk.truncate(self._descriptor, self.have, self._path)  # part of it may have been written
            if error.errno in FULL:
                raise OutOfSpace(_full(self._path)) from error
            raise

    def _close_chunk(self) -> None:
        if not self._chunk_is_right():
            start, kept = self.verified, self._kept_tail
            end = self.have
            self._back_to(self.verified)
            raise WrongChunk(
                f"{self.file.name} is damaged between bytes {start} and {end}: that chunk is fetched again",
                kept_tail=kept,
            )
        with out_of_space(self._path):
            self._disk.sync(self._descriptor, self._path)
        self._keep_chunk()

    def _chunk_is_right(self) -> bool:
        return self._chunk.hexdigest() == self.file.chunks[self.verified // self.file.chunk_bytes]

    def _keep_chunk(self) -> None:
        self.verified, self._kept_tail = self.have, False
        self._whole_verified, self._chunk = self._whole.copy(), hashlib.sha256()

    def _back_to(self, size: int) -> None:
        self._disk.truncate(self._descriptor, size, self._path)
        self._whole = self._whole_verified.copy() if size else hashlib.sha256()
        self._whole_verified, self._chunk = self._whole.copy(), hashlib.sha256()
        self.have = self.verified = size
        self._kept_tail = False


@contextlib.contextmanager
def out_of_space(path: Path) -> Iterator[None]:
    """Turns what the system says of a full disk into OutOfSpace."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise OutOfSpace(_full(path)) from error
        raise


def _full(path: Path) -> str:
    return f"the disk of {path.parent} is full: free some space; what was fetched so far stays and is taken up again"
