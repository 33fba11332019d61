"""What a publisher remembers beside its keys: lifetimes, every root, and the highest versions ever signed.

    <keys>/settings.json     days that each role is good for
    <keys>/signed.json       the highest version of each role that these keys have signed
    <keys>/<n>.root.json     a copy of every root: public, and needed when a repository comes from a backup

A repository that is behind signed.json has gone back in time; nodes would refuse it, so it is not signed
before somebody has looked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from release.disk import Disk
from release.document import DocumentError, parse, plain
from release.repository.errors import NoRepository
from release.trust.workflow import MOST_BYTES

T = TypeVar("T")

_SETTINGS, _SIGNED = "settings.json", "signed.json"


@dataclass(frozen=True, slots=True)
class Days:
    """How long what a role signs is good for. Short for what is signed by a timer, long for what needs a person."""

    root: int = 365
    targets: int = 90
    snapshot: int = 7
    timestamp: int = 7

    def __post_init__(self) -> None:
        if any(not 1 <= days <= 3650 for days in (self.root, self.targets, self.snapshot, self.timestamp)):
            raise ValueError("days must be between 1 and 3650")

    def life(self, role: str) -> timedelta:
        return timedelta(days=int(getattr(self, role)))


@dataclass(frozen=True, slots=True)
class Versions:
    """A number for each role; 0 where there is none."""

    root: int = 0
    timestamp: int = 0
    snapshot: int = 0
    targets: int = 0

    def highest(self, other: Versions) -> Versions:
        return Versions(
            max(self.root, other.root),
            max(self.timestamp, other.timestamp),
            max(self.snapshot, other.snapshot),
            max(self.targets, other.targets),
        )

    def behind(self, other: Versions) -> list[str]:
        """What is lower here than in `other`, in words."""
        pairs = [
            (name, getattr(self, name), getattr(other, name)) for name in ("root", "timestamp", "snapshot", "targets")
        ]
        return [f"{name} {mine} (signed: {theirs})" for name, mine, theirs in pairs if mine < theirs]


class Record:
    """The folder of keys, as far as it is public."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder, self._disk = folder, disk

    def days(self) -> Days:
        """Raises NoRepository when the file is there and wrong."""
        content = self._read(_SETTINGS)
        return Days() if content is None else _parsed(Days, content.get("days", {}), self._folder / _SETTINGS)

    def keep_days(self, days: Days) -> None:
        self._write(_SETTINGS, {"days": plain(days)})

    def signed(self) -> Versions:
        content = self._read(_SIGNED)
        return Versions() if content is None else _parsed(Versions, content, self._folder / _SIGNED)

    def note(self, versions: Versions) -> str:
        """Keeps the highest of each. Returns what to tell the user where the folder cannot be written."""
        known = self.signed()
        highest = known.highest(versions)
        if highest == known:
            return ""
        try:
            self._write(_SIGNED, plain(highest))
        except OSError as error:
            return (
                f"{self._folder / _SIGNED} could not be written ({error.strerror}): a repository restored from a "
                "backup will not be noticed"
            )
        return ""

    def roots(self) -> dict[int, bytes]:
        """Every root kept, by version."""
        found: dict[int, bytes] = {}
        for path in self._folder.glob("*.root.json"):
            number = path.name.removesuffix(".root.json")
            if number.isdecimal() and path.stat().st_size <= MOST_BYTES["root"]:
                found[int(number)] = path.read_bytes()
        return dict(sorted(found.items()))

    def keep_root(self, version: int, content: bytes) -> None:
        self._disk.folder(self._folder)
        self._disk.write(self._folder / f"{version}.root.json", content)

    def _read(self, name: str) -> Mapping[str, object] | None:
        path = self._folder / name
        try:
            content = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            raise NoRepository(
                f"{path} is not valid JSON ({error}): restore it from the backup of your keys"
            ) from error
        if not isinstance(content, dict):
            raise NoRepository(f"{path} must hold a JSON object: restore it from the backup of your keys")
        return content

    def _write(self, name: str, content: Mapping[str, object]) -> None:
        self._disk.folder(self._folder)
        self._disk.write(self._folder / name, (json.dumps(content, indent=1) + "\n").encode())


def _parsed(kind: type[T], content: object, path: Path) -> T:
    try:
        return parse(kind, content)
    except DocumentError as error:
        raise NoRepository(f"{path}: {error}") from error
