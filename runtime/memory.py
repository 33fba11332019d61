"""How much memory this process may still take, and giving back what it no longer uses.

The limits of the control groups around this process count, not only the machine's memory. Must not know models.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import psutil

from runtime.cgroup import ROOT, memory_left, memory_limit


def free_bytes(root: Path = ROOT) -> int:
    """Bytes that can be taken without swapping or breaking a limit. `root` is the file system's."""
    available, left = int(psutil.virtual_memory().available), memory_left(root)
    return available if left is None else min(available, left)


def limit_bytes(root: Path = ROOT) -> int:
    """Bytes this machine, or this container, has in all."""
    whole, limit = int(psutil.virtual_memory().total), memory_limit(root)
    return whole if limit is None else min(whole, limit)


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
