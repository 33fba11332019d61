"""What the updater is doing, for people and tools: `status.json` in the store, and one line for Describe.

Written whole, at most once a second and only when it is news. It is told to nobody who decides anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path

STATUS_NAME = "status.json"


@dataclass(frozen=True, slots=True)
class Fetching:
    """What is on its way. `bytes_per_s` is of late, rests included."""

    release: str
    part: str
    file: str = ""
    missing_bytes: int = 0
    total_bytes: int = 0
    bytes_per_s: float = 0.0
    source: str = ""

    @property
    def share(self) -> float:
        return 1.0 if self.total_bytes <= 0 else 1 - self.missing_bytes / self.total_bytes


@dataclass(frozen=True, slots=True)
class Status:
    """All of it. `held` maps releases on disk to the precisions they can serve."""

    model: str = ""
    wanted: str = ""
    why: str = ""
    refused: str = ""
    current: str = ""
    previous: str = ""
    trial: str = ""
    bad: Mapping[str, str] = field(default_factory=dict)
    held: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    plan: str = ""
    fetching: Fetching | None = None
    catalogue_issued: str = ""
    catalogue_expires: str = ""
    clock: str = ""
    spent_today_bytes: int = 0
    problem: str = ""

    @property
    def line(self) -> str:
        """In a few words; empty when there is nothing to say."""
        if self.problem:
            return self.problem
        if self.fetching is not None:
            return f"fetching {self.fetching.release}, {self.fetching.share:.0%} of the {self.fetching.part} part"
        return self.refused or ("" if self.held else self.plan)


class StatusFile:
    """Blocking."""

    def __init__(self, store_dir: Path, node: str, name: str = STATUS_NAME) -> None:
        """`name`: of several models the first has status.json, each other a file of its own beside it."""
        self._path, self._node = store_dir / name, node
        self._written = Status(model="\0")

    def write(self, status: Status, now: datetime) -> None:
        """Raises OSError. Not synced: nothing depends on it."""
        if status == self._written:
            return
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps({"at": now.isoformat(), "node": self._node, **asdict(status)}, indent=1))
        draft.replace(self._path)
        self._written = replace(status)
