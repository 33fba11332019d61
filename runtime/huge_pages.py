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
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MAPS = Path("/proc/self/maps")
_HUGE = 2 << 20
_PAGES = _HUGE // mmap.PAGESIZE
_ADVISE, _COLLAPSE = 14, 25  # MADV_HUGEPAGE, MADV_COLLAPSE
_MISSING_PAGES = _PAGES // 10  # of a stretch, at most; they are taken on
_OWN = ("", "[heap]")
_AT_ONCE = 64 << 20
_WITHIN_S = 2.0


def gather(setting: Path = _SETTING, within_s: float = _WITHIN_S) -> int:
    """Bytes that were to be put on huge pages. Takes milliseconds for each megabyte, and stops after `within_s`.

    `setting` is the system's.
    """
    if not _allowed(setting):
        return 0
    library, ends = ctypes.CDLL(None), time.monotonic() + within_s
    library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    library.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    pages, found = ctypes.create_string_buffer(_PAGES), 0

    def resident(start: int) -> bool:
        return library.mincore(start, _HUGE, pages) == 0 and pages.raw.count(b"\0") <= _MISSING_PAGES

    for start, size in _runs(start for start in _stretches() if resident(start)):
        if time.monotonic() > ends:
            break
        library.madvise(start, size, _ADVISE)
        library.madvise(start, size, _COLLAPSE)  # what cannot be had is left as it is
        found += size
    return found


def _runs(starts: Iterable[int]) -> Iterator[tuple[int, int]]:
    """(address, bytes) of neighbours together: every call makes all CPUs empty their lists of pages first."""
    begin = end = 0
    for start in starts:
        if start != end or end - begin >= _AT_ONCE:
            if end > begin:
                yield begin, end - begin
            begin = start
        end = start + _HUGE
    if end > begin:
        yield begin, end - begin


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
