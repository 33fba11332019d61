"""Weir's place on the disk for models: finished folders, unfinished downloads, locks.

    models/KEY/          finished: only ever made by renaming a whole folder into place
    downloads/KEY/       what has arrived so far; a later try goes on from it
    locks/KEY.lock       held while KEY is being made, by any process

Two processes never make the same model at once. The kernel frees a lock when its holder dies.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from quantize.progress import Progress
from quantize.sources.errors import DiskFull, SourceError

CHUNK_BYTES = 1 << 20
_LOCK_WAIT_S = 3600.0
_LOCK_POLL_S = 0.2
_OF_SPACE = (errno.ENOSPC, errno.EDQUOT)
_OF_RIGHTS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)


@dataclass(frozen=True, slots=True)
class Cache:
    root: Path

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Cache:
        """`WEIR_CACHE`, or the platform's cache directory."""
        chosen = environment.get("WEIR_CACHE")
        return cls(Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("weir")))

    def folder(self, key: str) -> Path:
        return self.root / "models" / key

    def staging(self, key: str) -> Path:
        path = self.root / "downloads" / key
        path.mkdir(parents=True, exist_ok=True)
        return path

    @contextlib.contextmanager
    def locked(self, key: str, progress: Progress) -> Iterator[None]:
        """Waits, an hour at most, until no other process makes `key`."""
        with disk_faults(self.root):
            (self.root / "locks").mkdir(parents=True, exist_ok=True)
            handle = (self.root / "locks" / f"{key}.lock").open("a")
        with handle:
            _take(handle.fileno(), key, progress)
            yield

    @contextlib.contextmanager
    def making(self, key: str) -> Iterator[Path]:
        """A folder to fill; it becomes models/KEY when the block ends well and vanishes when not."""
        final = self.folder(key)
        draft = final.with_name(f".making-{key}")
        shutil.rmtree(draft, ignore_errors=True)
        with disk_faults(self.root):
            draft.mkdir(parents=True)
            try:
                yield draft
                _flush(draft)
                draft.rename(final)
            finally:
                shutil.rmtree(draft, ignore_errors=True)

    def require(self, needed_bytes: int, what: str) -> None:
        """Raises DiskFull before anything is written where there cannot be room."""
        self.root.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.root).free
        if free < needed_bytes:
            raise DiskFull(
                f"{what} needs {megabytes(needed_bytes)} under {self.root}, where {megabytes(free)} are free: "
                "make room, or set WEIR_CACHE to a folder on a larger disk"
            )


@contextlib.contextmanager
def disk_faults(place: Path) -> Iterator[None]:
    """Turns the system's words for a full or forbidden disk into ours."""
    try:
        yield
    except OSError as error:
        if error.errno in _OF_SPACE:
            raise disk_full(place) from error
        if error.errno in _OF_RIGHTS:
            raise SourceError(
                f"{error.filename or place} cannot be written ({error.strerror}): set WEIR_CACHE to a folder that can"
            ) from error
        raise


def disk_full(place: Path) -> DiskFull:
    return DiskFull(
        f"the disk that holds {place} is full: make room, or set WEIR_CACHE to a folder on a larger disk, "
        "and run the same command again; what has arrived is kept"
    )


def megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"


def sha256_of(*files: Path) -> str:
    """Of the files' contents, one after another."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as handle:
            while chunk := handle.read(CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


def write_json(path: Path, document: Mapping[str, object]) -> None:
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _take(descriptor: int, key: str, progress: Progress) -> None:
    ends = time.monotonic() + _LOCK_WAIT_S
    told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > ends:
                raise SourceError(
                    f"another process has been making {key} for over an hour: end it, then try again"
                ) from None
            if not told:
                progress.note(f"another process is making {key}: waiting for it")
                told = True
            time.sleep(_LOCK_POLL_S)
        else:
            return


def _flush(folder: Path) -> None:
    """Onto the disk itself, so that a power cut cannot leave a renamed folder with empty files."""
    for path in [*folder.iterdir(), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
