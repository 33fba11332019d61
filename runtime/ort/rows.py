"""The KV pool: for every layer one key and one value array [slots, heads, capacity, head_dim].

The arrays are made once and never move, because the session is bound to their addresses. They lie in
a mapping of their own, not on the heap: pages are touched only as far as sequences reach, so an idle
pool costs address space and not memory, and all of it goes back when the pool goes. (A heap that had
been used before would be cleared, and thereby touched, from end to end.)
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_FLOAT_BYTES = 4
_OWN = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


@dataclass(frozen=True, slots=True)
class RowShape:
    """The KV cache of one model: layers, KV heads and values per head."""

    layers: int
    heads: int
    head_dim: int


class RowPool:
    """`slots` rows of `capacity` positions; names follow the graph's inputs."""

    def __init__(self, shape: RowShape, slots: int, capacity: int) -> None:
        self.slots, self.capacity = slots, capacity
        names = [f"{layer}.{part}" for layer in range(shape.layers) for part in ("key", "value")]
        self._memory, self.whole = _mapped((len(names), slots, shape.heads, capacity, shape.head_dim))
        self.arrays: dict[str, npt.NDArray[np.float32]] = dict(zip(names, self.whole, strict=True))

    def move(self, source: int, target: int, start: int, end: int) -> None:
        """Copies positions start … end-1 of one row to the same ones of another."""
        for array in self.whole:  # array by array: over all of them numpy would copy twice
            array[target, :, start:end] = array[source, :, start:end]

    def first(self, rows: Sequence[int]) -> npt.NDArray[np.float32]:
        """A copy of what the first positions of `rows` hold."""
        return self.whole[:, rows, :, 0]

    def put_first(self, rows: Sequence[int], held: npt.NDArray[np.float32]) -> None:
        """Puts back what `first` gave."""
        self.whole[:, rows, :, 0] = held

    def give_back(self, row: int, start: int) -> None:
        """Returns the whole pages of a row's positions from `start` on to the system; they read as zeros then."""
        names, _, heads, capacity, head_dim = self.whole.shape
        position = head_dim * _FLOAT_BYTES
        # A row's heads lie one behind the other, so a row that goes whole goes in one piece.
        pieces, size = (1, heads * capacity * position) if start == 0 else (heads, capacity * position)
        for name in range(names):
            first = (name * self.slots + row) * heads * capacity * position
            for piece in range(pieces):
                _drop(self._memory, first + piece * size + start * position, first + (piece + 1) * size)


class BlockPool:
    """Blocks of `tokens` positions, copied out of rows and back into others. Touched only as far as it is used."""

    def __init__(self, rows: RowPool, blocks: int, tokens: int) -> None:
        names, _, heads, _, head_dim = rows.whole.shape
        self._rows, self._tokens = rows.whole, tokens
        self._memory, self._blocks = _mapped((blocks, names, heads, tokens, head_dim))

    def keep(self, row: int, start: int, block: int) -> None:
        self._blocks[block] = self._rows[:, row, :, start : start + self._tokens]

    def restore(self, block: int, row: int, start: int) -> None:
        self._rows[:, row, :, start : start + self._tokens] = self._blocks[block]

    def forget(self, first: int, end: int) -> None:
        """Returns the whole pages of blocks first … end-1; they read as zeros then."""
        block = self._blocks[0].nbytes if len(self._blocks) else 0
        _drop(self._memory, first * block, end * block)


def _mapped(shape: tuple[int, ...]) -> tuple[mmap.mmap, npt.NDArray[np.float32]]:
    # Anonymous pages are zero until they are written.
    memory = mmap.mmap(-1, max(math.prod(shape) * _FLOAT_BYTES, 1), flags=_OWN)
    return memory, np.frombuffer(memory, np.float32, math.prod(shape)).reshape(shape)


def _drop(memory: mmap.mmap, start: int, end: int) -> None:
    page = mmap.PAGESIZE
    first, last = -(-start // page) * page, end // page * page
    if first < last:
        memory.madvise(mmap.MADV_DONTNEED, first, last - first)
