"""Puts what a process has in memory on huge pages, so that reading all of it does not wait for address lookups.

A decode step reads every weight once. On pages of 4 KiB that is tens of thousands of lookups no buffer of the
CPU holds; on pages of 2 MiB it is a few dozen. Most systems give huge pages only to memory that asks for them
(`madvise`), and ONNX Runtime does not ask, so this is done from outside once the weights are where they stay.
Only stretches that are resident already are asked for: a pool that is touched as far as sequences reach stays
as it is. Linux from 6.1; elsewhere, or where huge pages are off, nothing happens.

Must not know: models.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from pathlib import Path

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MAPS = Path("/proc/self/maps")
_HUGE = 2 << 20
_PAGES = _HUGE // mmap.PAGESIZE
_ADVISE, _COLLAPSE = 14, 25  # MADV_HUGEPAGE, MADV_COLLAPSE
_MISSING_PAGES = _PAGES // 10  # of a stretch, at most; they are taken on
_OWN = ("", "[heap]")


def gather(setting: Path = _SETTING) -> int:
    """Bytes that were put on huge pages. Takes about a millisecond for each megabyte; `setting` is the system's."""
    if not _allowed(setting):
        return 0
    library = ctypes.CDLL(None)
    library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    library.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    found, resident = 0, ctypes.create_string_buffer(_PAGES)
    for start in _stretches():
        if library.mincore(start, _HUGE, resident) or resident.raw.count(b"\0") > _MISSING_PAGES:
            continue
        if library.madvise(start, _HUGE, _ADVISE) == 0 and library.madvise(start, _HUGE, _COLLAPSE) == 0:
            found += _HUGE
    return found


def _allowed(setting: Path) -> bool:
    try:
        return "[never]" not in setting.read_text(encoding="utf-8")
    except OSError:
        return False


def _stretches() -> Iterator[int]:
    """Addresses of whole huge pages' room within private memory of no file."""
    for line in _MAPS.read_text(encoding="utf-8").splitlines():
        place, rights, _, _, inode, *name = line.split(maxsplit=5)
        if rights != "rw-p" or inode != "0" or "".join(name) not in _OWN:
            continue
        low, high = (int(end, 16) for end in place.split("-"))
        yield from range(-(-low // _HUGE) * _HUGE, high - _HUGE + 1, _HUGE)
