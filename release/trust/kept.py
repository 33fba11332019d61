"""What a node remembers of a repository, on disk.

    <folder>/metadata/<n>.root.json ...  every root since the pinned one
    <folder>/metadata/timestamp.json  <n>.snapshot.json  <n>.targets.json
                                         the last set that was verified as a whole
    <folder>/seen.json                   the highest versions and the newest time ever verified

The names in metadata/ are a repository's own, so that a sibling can verify against this folder as
against any other source. A set is laid down with its timestamp last: until that is renamed into place
the set before it counts, and its files stay until the one after it. seen.json may run ahead of the set,
never behind: versions are noted as soon as they are verified, even if the rest never comes. Where it is
lost, the set on disk still bounds it.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from release.disk import Disk
from release.document import parse, plain
from release.objects import METADATA
from release.trust.workflow import MOST_BYTES, Seen

_SEEN = "seen.json"
_TIMESTAMP = "timestamp.json"


@dataclass(frozen=True, slots=True)
class Files:
    """The three files of one state, and the versions that stand in two of their names."""

    timestamp: bytes
    snapshot: bytes
    targets: bytes
    snapshot_version: int
    targets_version: int

    @property
    def names(self) -> tuple[str, str]:
        return f"{self.snapshot_version}.snapshot.json", f"{self.targets_version}.targets.json"


class Kept:
    """The folder. Whoever writes is one: a node has one updater."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder, self._disk = folder, disk
        self.metadata = folder / METADATA

    def root(self, version: int) -> bytes | None:
        """The root of that version, as kept."""
        return self._read(f"{version}.root.json", MOST_BYTES["root"])

    def drop_roots_after(self, version: int) -> None:
        """Removes roots that do not follow: siblings would be given them."""
        for path in self.metadata.glob("*.root.json"):
            number = path.name.removesuffix(".root.json")
            if number.isdecimal() and int(number) > version:
                with contextlib.suppress(OSError):
                    self._disk.remove(path)

    def keep_root(self, version: int, content: bytes) -> None:
        """Raises OSError."""
        self._disk.folder(self.metadata)
        self._disk.write(self.metadata / f"{version}.root.json", content)

    def timestamp(self) -> bytes | None:
        """The timestamp of the last whole set."""
        return self._read(_TIMESTAMP, MOST_BYTES["timestamp"])

    def snapshot(self, version: int) -> bytes | None:
        return self._read(f"{version}.snapshot.json", MOST_BYTES["snapshot"])

    def targets(self, version: int) -> bytes | None:
        return self._read(f"{version}.targets.json", MOST_BYTES["targets"])

    def keep(self, files: Files, before: Files | None) -> None:
        """Replaces the set `before`, whose files stay for those who are reading it. Raises OSError."""
        self._disk.folder(self.metadata)
        for name, content in zip(files.names, (files.snapshot, files.targets), strict=True):
            if self._read(name, len(content)) != content:
                self._disk.write(self.metadata / name, content)
        if self.timestamp() != files.timestamp:
            self._disk.write(self.metadata / _TIMESTAMP, files.timestamp)
        stay = {*files.names, *(before.names if before else ())}
        for path in [*self.metadata.glob("*.snapshot.json"), *self.metadata.glob("*.targets.json")]:
            if path.name not in stay:
                with contextlib.suppress(OSError):
                    self._disk.remove(path)

    def seen(self) -> Seen:
        """What was noted; nothing, where that is lost or unreadable."""
        try:
            return parse(Seen, json.loads((self._folder / _SEEN).read_bytes()))
        except (OSError, ValueError, RecursionError):
            return Seen()

    def note(self, seen: Seen) -> None:
        """Raises OSError."""
        self._disk.folder(self._folder)
        self._disk.write(self._folder / _SEEN, (json.dumps(plain(seen), indent=1) + "\n").encode())

    def _read(self, name: str, most: int) -> bytes | None:
        try:
            with (self.metadata / name).open("rb") as handle:
                content = handle.read(most + 1)
        except OSError:
            return None
        return content if len(content) <= most else None
