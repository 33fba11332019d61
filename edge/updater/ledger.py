"""What was fetched today, kept on disk: a restart does not give a day's budget back.

Days are UTC's. Written every second at most, so a cut forgets a little; it is no part of what a node
needs to serve, and a file that cannot be read counts as nothing spent.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from release.disk import Disk

_WRITE_EVERY_S = 1.0


class Ledger:
    """Bytes that came over the link to the repository."""

    def __init__(self, path: Path, now: Callable[[], datetime], disk: Disk | None = None) -> None:
        self._path, self._now, self._disk = path, now, disk or Disk()
        self._day, self._spent = self._load()
        self._written_at: datetime | None = None

    @property
    def spent_today(self) -> int:
        self._turn()
        return self._spent

    def add(self, count: int) -> None:
        self._turn()
        self._spent += count

    def save(self, *, at_once: bool = False) -> None:
        """Blocking. Raises OSError."""
        now = self._now()
        since = None if self._written_at is None else (now - self._written_at).total_seconds()
        if not at_once and since is not None and 0 <= since < _WRITE_EVERY_S:
            return
        self._written_at = now
        self._disk.write(self._path, json.dumps({"day": self._day, "bytes": self._spent}).encode())

    def _turn(self) -> None:
        today = self._now().date().isoformat()
        if today != self._day:
            self._day, self._spent = today, 0

    def _load(self) -> tuple[str, int]:
        try:
            content = json.loads(self._path.read_text())
            return str(content["day"]), max(0, int(content["bytes"]))
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return "", 0
