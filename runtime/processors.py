"""Which processors this process may use, how many cores they are, and how to keep to some of them.

Two hardware threads of one core share what matrix products need, so threads are counted by cores. `root` is the file
system's root, for tests.
"""

from __future__ import annotations

import os
from collections.abc import Set
from pathlib import Path

from runtime.cgroup import ROOT, cpu_quota

MOST = 4096


def allowed() -> frozenset[int]:
    """The processors of this process's affinity."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def parse(text: str) -> frozenset[int]:
    """Processors of a list like `0-3,8`, as in /sys; none of an empty one. Raises ValueError."""
    found: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"{part!r} is no processor and no range of them, like 0-3,8")
        low, high = int(first), int(last or first)
        if not low <= high < MOST:
            raise ValueError(f"{part!r} must go from a smaller to a larger number, below {MOST}")
        found.update(range(low, high + 1))
    return frozenset(found)


def usable(text: str, here: Set[int] | None = None) -> frozenset[int]:
    """Those of a list that are allowed here; of an empty one, all that are. Raises ValueError when it is none."""
    mine = allowed() if here is None else frozenset(here)
    if not text.strip():
        return mine
    found = parse(text) & mine
    if not found:
        raise ValueError(f"none of {text} may be used here, only {', '.join(map(str, sorted(mine)))}")
    return found


def cores(processors: Set[int], root: Path = ROOT) -> int:
    """How many physical cores these processors are; where the system does not tell, each counts as one."""
    return len({_core(number, root) for number in processors})


def threads(text: str = "", root: Path = ROOT, here: Set[int] | None = None) -> int:
    """How many threads to compute with: cores of what may be used, within the control groups' quota; at least 1."""
    count, quota = cores(usable(text, here), root), cpu_quota(root)
    return max(1, count if quota is None else min(count, int(quota)))


def keep_to(text: str) -> None:
    """Binds this process, and threads it starts from now on, to a list of processors; an empty one changes nothing.

    Raises ValueError when none of them is allowed.
    """
    if text.strip() and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, usable(text))


def _core(number: int, root: Path) -> frozenset[int]:
    topology = root / f"sys/devices/system/cpu/cpu{number}/topology"
    for name in ("core_cpus_list", "thread_siblings_list"):  # the second is the older name
        try:
            siblings = parse((topology / name).read_text())
        except (OSError, ValueError):
            continue
        if number in siblings:
            return siblings
    return frozenset((number,))
