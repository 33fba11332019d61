"""A rank's sign of life: a small file, rewritten several times a second by a thread of its own.

It tells three states apart that look alike from outside: a process that is gone (its pid), one that
is stopped (the beat is old) and one whose batch loop stands still, for example because a peer in the
group does not answer (`steps` does not move). Times are CLOCK_MONOTONIC, which all processes of a
machine share.

Must not know: torch, sockets.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

_log = logging.getLogger("weir.rank")


@dataclass(frozen=True, slots=True)
class Beat:
    """`turns` counts rounds of the batch loop, idle ones too; `at` is in monotonic seconds."""

    rank: int
    pid: int
    state: str  # loading or ready
    turns: int = 0
    parameter_bytes: int = 0
    parameter_bytes_total: int = 0
    at: float = 0.0


def beat_path(run_dir: Path, rank: int) -> Path:
    return run_dir / f"rank{rank}.beat"


def write_beat(run_dir: Path, beat: Beat) -> None:
    """Replaces the rank's beat; readers see the old one or the new one, never half of it."""
    path = beat_path(run_dir, beat.rank)
    draft = path.with_suffix(".next")
    draft.write_text(json.dumps(asdict(beat)))
    draft.replace(path)


def read_beat(run_dir: Path, rank: int) -> Beat | None:
    """The rank's last beat; None when there is none that can be read."""
    try:
        return Beat(**json.loads(beat_path(run_dir, rank).read_text()))
    except (OSError, ValueError, TypeError):
        return None


class Heart:
    """Writes a rank's beats from a thread until stopped. `observe` gives the beat's present content."""

    def __init__(self, run_dir: Path, interval_s: float, observe: Callable[[], Beat]) -> None:
        self._run_dir, self._interval_s, self._observe = run_dir, interval_s, observe
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heart", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(self._interval_s * 2)

    def _run(self) -> None:
        while not self._stop.is_set():
            observed = self._observe()
            try:
                write_beat(self._run_dir, Beat(**{**asdict(observed), "at": time.monotonic()}))
            except OSError as error:
                _log.warning("cannot write this rank's beat: %s; its parent will see it grow old", error)
            self._stop.wait(self._interval_s)
