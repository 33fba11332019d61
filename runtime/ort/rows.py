"""The KV pool: for every layer one key and one value array [slots, heads, capacity, head_dim].

The arrays are made once and never move, because the session is bound to their addresses. They lie in
a mapping of their own, not on the heap: pages are touched only as far as sequences reach, so an idle
pool costs address space and not memory, and all of it goes back when the pool goes. (A heap that had
been used before would be cleared, and thereby touched, from end to end.)
"""

from __future__ import annotations

import math
import mmap
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
        size = (slots, shape.heads, capacity, shape.head_dim)
        names = [f"{layer}.{part}" for layer in range(shape.layers) for part in ("key", "value")]
        # Anonymous pages are zero until they are written.
        memory = mmap.mmap(-1, max(len(names) * math.prod(size) * _FLOAT_BYTES, 1), flags=_OWN)
        whole = np.frombuffer(memory, np.float32, len(names) * math.prod(size)).reshape(len(names), *size)
        self.arrays: dict[str, npt.NDArray[np.float32]] = dict(zip(names, whole, strict=True))

    def move(self, source: int, target: int, length: int) -> None:
        """Copies the first `length` positions of one row over another."""
        for array in self.arrays.values():
            array[target, :, :length] = array[source, :, :length]

    def swap(self, first: int, second: int, length: int) -> None:
        """Exchanges the first `length` positions of two rows."""
        for array in self.arrays.values():
            kept = array[first, :, :length].copy()
            array[first, :, :length] = array[second, :, :length]
            array[second, :, :length] = kept
