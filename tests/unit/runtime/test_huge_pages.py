"""Huge pages: values stay, resident memory is gathered where the system allows it, untouched memory stays untouched."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from runtime import huge_pages
from runtime.memory import resident_bytes

_MEGABYTE = 1 << 20


def _mapping(megabytes: int) -> np.ndarray:
    memory = mmap.mmap(-1, megabytes * _MEGABYTE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, np.uint8)


def test_values_stay_as_they_are() -> None:
    values = _mapping(8)
    values[:] = np.arange(len(values), dtype=np.uint64).astype(np.uint8)
    kept = values.copy()
    assert huge_pages.gather() % (2 * _MEGABYTE) == 0
    assert np.array_equal(values, kept)


def test_memory_that_was_never_touched_is_not_taken() -> None:
    huge_pages.gather()
    before = resident_bytes()
    values = _mapping(512)
    values[:: 64 * _MEGABYTE] = 1
    huge_pages.gather()
    assert resident_bytes() - before < 64 * _MEGABYTE


def test_what_the_system_forbids_is_not_done(tmp_path: Path) -> None:
    setting = tmp_path / "enabled"
    setting.write_text("always madvise [never]\n")
    assert huge_pages.gather(setting) == 0
    assert huge_pages.gather(tmp_path / "missing") == 0


def test_no_time_is_no_pages() -> None:
    assert huge_pages.gather(within_s=-1.0) == 0
