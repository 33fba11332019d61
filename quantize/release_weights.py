"""The three weight files of a release being written: what is kept, what is rounded to 8 bits, what is nested.

Tensors are named as `release.folder` looks for them. One matrix is in memory at a time.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from quantize.layout import WeightFile
from quantize.nest import ROWS_AT_ONCE, Nested, Nester, round_to_nearest
from release.manifest import BASE, PLANE_HI, PLANE_LO, Matrix, QualityFigure, Tensor
from release.planes import Floats, blocks, compose, dequantize, pack4, packz

EIGHT_BITS = 8


class ReleaseWeights:
    """Weight files in `folder`; a context manager. `tensors`, `matrices` and `errors` are whole once it is left."""

    def __init__(self, folder: Path, nester: Nester, block_size: int) -> None:
        self.matrices: list[Matrix] = []
        self._nester, self._block_size = nester, block_size
        self._stack = ExitStack()
        self._base, self._hi, self._lo = (WeightFile(folder / name) for name in (BASE, PLANE_HI, PLANE_LO))
        self._squares = np.zeros(3)
        self._count = 0

    def __enter__(self) -> Self:
        for file in (self._base, self._hi, self._lo):
            self._stack.enter_context(file)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (*self._base.tensors, *self._hi.tensors, *self._lo.tensors)

    def keep(self, name: str, values: NDArray[Any]) -> None:
        """Values that both precisions take as they are; half precision is widened when a session is fed."""
        self._base.add(name, values)

    def eight_bit(self, name: str, weight: Floats, table: str = "") -> None:
        """A matrix [N, K] at 8 bits in both precisions. `table` names the same codes as [N, K]."""
        made = round_to_nearest(weight, self._block_size, EIGHT_BITS)
        place = self._base.add(f"{name}.q", made.codes)
        if table:
            self._base.alias(f"{table}.q", place, weight.shape)
        self._base.add(f"{name}.s", made.scales.astype(np.float16))
        self._base.add(f"{name}.z", made.zeros)

    def eight_bit_table(self, name: str, weight: Floats) -> None:
        """A table [N, K] that rows are looked up in, at 8 bits in both precisions."""
        made = round_to_nearest(weight, self._block_size, EIGHT_BITS)
        self._base.add(f"{name}.q", made.codes.reshape(weight.shape))
        self._base.add(f"{name}.s", made.scales.astype(np.float16))
        self._base.add(f"{name}.z", made.zeros)

    def nest(self, name: str, weight: Floats, table: str = "") -> None:
        """A matrix [N, K] at 4 bits and, with the residual, at 8; `table` as in Matrix."""
        nested = self._nester.nest(name, weight, self._block_size)
        four, steps = nested.four, nested.steps
        uniform = int(steps.flat[0]) if (steps == steps.flat[0]).all() else 0
        self._hi.add(f"{name}.q", pack4(four.codes))
        self._lo.add(f"{name}.r", pack4(nested.rest))
        if not uniform:
            self._lo.add(f"{name}.c", packz(steps - np.uint8(1)))
        self._base.add(f"{name}.s", four.scales.astype(np.float16))
        self._base.add(f"{name}.z", packz(four.zeros))
        if nested.offsets is not None and nested.units is not None:
            self._base.add(f"{name}.f", packz(nested.offsets))
            self._base.add(f"{name}.u", nested.units.astype(np.float16))
        rows, columns = weight.shape
        self.matrices.append(Matrix(name, rows, columns, self._block_size, uniform, nested.offsets is not None, table))
        for start in range(0, rows, ROWS_AT_ONCE):
            self._count_errors(weight[start : start + ROWS_AT_ONCE], nested.rows(start, start + ROWS_AT_ONCE))
        self._count += weight.size

    def _count_errors(self, weight: Floats, nested: Nested) -> None:
        source, four = blocks(weight, self._block_size), nested.four
        eight = compose(four.codes, nested.rest, four.scales, four.zeros, nested.steps)
        gaps = (nested.at_four_bits() - source, dequantize(*eight) - source)
        self._squares += [float(np.square(values).sum(dtype=np.float64)) for values in (source, *gaps)]

    def errors(self, digest: str) -> tuple[QualityFigure, ...]:
        """The weights' relative error at each precision; `digest` is of the source."""
        total = max(self._squares[0], 1e-30)
        return tuple(
            QualityFigure("relative_weight_error", float((part / total) ** 0.5), bits, self._count, 0, digest, "any")
            for bits, part in zip((4, 8), self._squares[1:], strict=True)
        )
