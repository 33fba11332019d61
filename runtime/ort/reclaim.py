"""Gives back the memory of weights that a session has packed for itself and never reads again.

The kernels keep a copy of most weight codes in an order of their own. What they were fed with is then
dead weight: about half of what a session takes. No call tells which arrays are still read, so this is
found out: codes that were made in memory are put in a mapping of their own before the session is made;
afterwards its pages are dropped, which leaves zeros, and a session that computes what it computed
before does not read them. Otherwise they are put back. Mapped files are safe in any case: a dropped
page is read again when it is touched.

Must not know: which kernels there are.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_CODES = ".q"
_LEAST_BYTES = mmap.PAGESIZE
_OWN = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class Packed:
    """Weight codes that were made in memory, in a mapping of their own."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        """Moves the codes there; `arrays` then holds views of the mapping."""
        names = _droppable(arrays)
        self._places: dict[str, tuple[int, int]] = {}
        end = 0
        for name in names:
            self._places[name] = (end, arrays[name].nbytes)
            end += -(-arrays[name].nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.bytes = end
        self._memory = mmap.mmap(-1, end, flags=_OWN) if end else None
        for name in names:  # one by one: at no time are all of them there twice
            made = arrays[name]
            arrays[name] = self._view(name).view(made.dtype).reshape(made.shape)
            arrays[name][...] = made

    def drop(self) -> None:
        """Whoever reads the codes from now on reads zeros."""
        if self._memory is not None:
            self._memory.madvise(mmap.MADV_DONTNEED)

    def put_back(self, arrays: Mapping[str, Array]) -> None:
        """Undoes `drop`; `arrays` are the same weights, made anew."""
        for name in self._places:
            self._view(name)[...] = np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8)

    def _view(self, name: str) -> npt.NDArray[np.uint8]:
        start, size = self._places[name]
        assert self._memory is not None
        return np.frombuffer(self._memory, np.uint8, size, start)


def drop_file_pages(arrays: Mapping[str, Array]) -> None:
    """Lets go of the pages of mapped files that the arrays are views of."""
    files = {id(memory): memory for array in arrays.values() if (memory := _mapping(array)) is not None}
    for memory in files.values():
        memory.madvise(mmap.MADV_DONTNEED)


def _droppable(arrays: Mapping[str, Array]) -> list[str]:
    """Codes that lie in this process's memory alone and under one name: a shared table is looked up as it is."""
    at = Counter(_address(array) for array in arrays.values())
    return [
        name
        for name, array in arrays.items()
        if name.endswith(_CODES)
        and array.nbytes >= _LEAST_BYTES
        and array.flags.c_contiguous
        and _mapping(array) is None
        and at[_address(array)] == 1
    ]


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _mapping(array: Array) -> mmap.mmap | None:
    """The mapped file that an array is a view of."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, mmap.mmap) else None
