"""Writes a release's weight files tensor by tensor and remembers where each one lies.

Large tensors begin at page borders, so that mapping one touches no page of another; small ones at 64
bytes. One writer per file; the values of one tensor are in memory at a time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from release.manifest import Tensor

_PAGE, _LINE = 4096, 64
_LARGE_BYTES = 65_536


class WeightFile:
    """One weight file being written."""

    def __init__(self, path: Path) -> None:
        self.tensors: list[Tensor] = []
        self._path = path
        self._handle = path.open("wb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._handle:
            if error is None:
                self._handle.flush()
                os.fsync(self._handle.fileno())

    def add(self, name: str, values: NDArray[Any]) -> Tensor:
        """Appends a tensor and returns its place."""
        values = np.ascontiguousarray(values)
        position = self._handle.tell()
        padding = -position % (_PAGE if values.nbytes > _LARGE_BYTES else _LINE)
        self._handle.write(b"\0" * padding)
        self._handle.write(values.reshape(-1).view(np.uint8).data)
        tensor = Tensor(name, self._path.name, position + padding, str(values.dtype), values.shape)
        self.tensors.append(tensor)
        return tensor

    def alias(self, name: str, of: Tensor, shape: Sequence[int]) -> None:
        """A second name for bytes already written."""
        self.tensors.append(Tensor(name, of.file, of.offset, of.dtype, tuple(shape)))
