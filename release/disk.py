"""The few writes a store makes, each one whole or repeatable, and each a step that can be watched.

After a power cut at any step the folder holds either what was there before the step or what is there
after it: content is synced before a name points to it, and a folder before anything relies on the name.
`step` is told of every single operation before it is done; a test ends the process there, or raises
what a full disk would. Must not know what the files mean.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

Step = Callable[[str, Path], None]


def _unwatched(_operation: str, _path: Path) -> None:
    """Nobody looks."""


class Disk:
    """Writes. Every method raises OSError as the system does."""

    def __init__(self, step: Step = _unwatched) -> None:
        self._step = step

    def folder(self, path: Path) -> None:
        """Makes a folder with its parents; nothing when it is there."""
        if path.is_dir():
            return
        self.folder(path.parent)
        self._step("mkdir", path)
        path.mkdir(mode=0o755, exist_ok=True)
        self.sync_folder(path.parent)

    def append(self, descriptor: int, data: memoryview, path: Path) -> None:
        """Writes all of `data` at the descriptor's position."""
        self._step("append", path)
        while data:
            data = data[os.write(descriptor, data) :]

    def truncate(self, descriptor: int, size: int, path: Path) -> None:
        """Cuts a file to `size` and goes to its end."""
        self._step("truncate", path)
        os.ftruncate(descriptor, size)
        os.lseek(descriptor, size, os.SEEK_SET)

    def sync(self, descriptor: int, path: Path) -> None:
        """Returns once the file's bytes would survive a power cut."""
        self._step("sync", path)
        os.fsync(descriptor)

    def sync_folder(self, path: Path) -> None:
        """Returns once the names in a folder would survive a power cut."""
        self._step("sync_folder", path)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def move(self, source: Path, target: Path) -> None:
        """Renames over whatever is at `target`."""
        self._step("move", target)
        source.replace(target)
        self.sync_folder(target.parent)

    def link(self, source: Path, target: Path) -> None:
        """A second name for a file; nothing when it has it already."""
        if target.exists():
            if target.samefile(source):
                return
            self.remove(target)
        self._step("link", target)
        target.hardlink_to(source)

    def remove(self, path: Path) -> None:
        """A file or an empty folder; nothing when it is not there."""
        self._step("remove", path)
        try:
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        except FileNotFoundError:
            return

    def write(self, path: Path, content: bytes) -> None:
        """The file holds `content`, or after a cut what it held before."""
        draft = path.with_name(f".{path.name}.new")
        self._step("create", draft)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            self.append(descriptor, memoryview(content), draft)
            self.sync(descriptor, draft)
        finally:
            os.close(descriptor)
        self.move(draft, path)
