"""What was put in force last, on disk: an engine that is replaced starts with it, not with the first.

The node keeps its last directive while its upstream is away, also over the death of its engine.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

_FILE = "active.json"


@dataclass(frozen=True, slots=True)
class InForce:
    """A release's id and the precision it was last served at."""

    release: str
    precision: int


def remember(run_dir: Path, last: InForce) -> None:
    """Whole or not at all."""
    draft = run_dir / f"{_FILE}.new"
    draft.write_text(json.dumps({"release": last.release, "precision": last.precision}))
    draft.replace(run_dir / _FILE)


def remembered(run_dir: Path) -> InForce | None:
    """None when nothing, or nothing readable, is there."""
    try:
        content = json.loads((run_dir / _FILE).read_text())
        return InForce(str(content["release"]), int(content["precision"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def forget(run_dir: Path) -> None:
    """After what was remembered could not be served."""
    (run_dir / _FILE).unlink(missing_ok=True)
