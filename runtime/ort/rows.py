"""The KV pool: for every layer one key and one value array [slots, heads, capacity, head_dim].

The arrays are made once and never move, because the session is bound to their addresses. Pages are
touched only as far as sequences reach, so an idle pool costs address space, not memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


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
        self.arrays: dict[str, npt.NDArray[np.float32]] = {
            f"{layer}.{part}": np.zeros(size, np.float32) for layer in range(shape.layers) for part in ("key", "value")
        }

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
