"""How much memory this process may still take, and giving back what it no longer uses.

A container's limit counts, not only the machine's memory. Must not know models.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def free_bytes(cgroup: Path = _CGROUP) -> int:
    """Bytes that can be taken without swapping or breaking the container's limit."""
    available = int(psutil.virtual_memory().available)
    limit = _left_in_cgroup(cgroup)
    return available if limit is None else min(available, limit)


def limit_bytes(cgroup: Path = _CGROUP) -> int:
    """Bytes this machine, or this container, has in all."""
    whole = int(psutil.virtual_memory().total)
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        return whole if limit == "max" else min(whole, int(limit))
    except (OSError, ValueError):
        return whole


def resident_bytes() -> int:
    """Bytes of memory this process takes now, mapped files included."""
    return int(psutil.Process().memory_info().rss)


def private_bytes() -> int:
    """Of those, what is this process's alone: it can neither be dropped nor read again from a file."""
    taken = psutil.Process().memory_info()
    return int(taken.rss - getattr(taken, "shared", 0))


def trim() -> None:
    """Returns freed heap pages to the system; the C library keeps hundreds of megabytes after a model went.

    Takes milliseconds, without the interpreter lock. Does nothing where the C library has no such call.
    """
    call = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if call is not None:
        call(0)


def _left_in_cgroup(root: Path) -> int | None:
    """What the cgroup (v2) leaves; None without a limit. Cached file pages give way, so they count as free."""
    try:
        limit = (root / "memory.max").read_text().strip()
        used = int((root / "memory.current").read_text())
        lines = (line.split() for line in (root / "memory.stat").read_text().splitlines())
        cached = next((int(value) for name, value in lines if name == "inactive_file"), 0)
        return None if limit == "max" else max(int(limit) - used + cached, 0)
    except (OSError, ValueError):
        return None
