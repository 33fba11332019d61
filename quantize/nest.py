"""A float weight becomes nested codes: a 4-bit weight and the residual that makes it an 8-bit one.

`Nester` is the seam: given a weight it returns codes, scales, zero points and divisors. Rounding to
nearest needs nothing but the weight; methods that compensate errors know the layer's inputs and
choose smaller divisors. Scales are rounded to half precision before the codes are chosen, because
that is how a release stores them. Pure numpy; no files, no graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from release.planes import WIDEST_STEP, Codes, Floats, blocks, choose_steps, dequantize, offset_values, residual

_LEAST_SCALE = np.float32(2**-24)  # the smallest half-precision number above zero
ROWS_AT_ONCE = 16_384
_SHRINKS = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8)


@dataclass(frozen=True, slots=True)
class Quantized:
    """One weight at one width: codes uint8 [N, nb, bs], scales float32 [N, nb], zeros uint8 [N, nb]."""

    codes: Codes
    scales: Floats
    zeros: Codes


@dataclass(frozen=True, slots=True)
class Nested:
    """A 4-bit weight and its residual codes at divisors `steps` uint8 [N, nb].

    Where the 4-bit weight has offsets, `offsets` are their codes uint8 [N, nb] and `units` float32 [N, groups].
    """

    four: Quantized
    rest: Codes
    steps: Codes
    offsets: Codes | None = None
    units: Floats | None = None

    def at_four_bits(self) -> Floats:
        """The weights [N, nb, bs] that a 4-bit session multiplies by."""
        plain = dequantize(self.four.codes, self.four.scales, self.four.zeros)
        if self.offsets is None or self.units is None:
            return plain
        return plain + offset_values(self.offsets, self.units)[..., None]

    def rows(self, start: int, end: int) -> Nested:
        """A part of the rows."""

        def part(values: Any) -> Any:
            return None if values is None else values[start:end]

        four = Quantized(part(self.four.codes), part(self.four.scales), part(self.four.zeros))
        return Nested(four, part(self.rest), part(self.steps), part(self.offsets), part(self.units))


def stacked(parts: Sequence[Nested]) -> Nested:
    """Matrices of as many columns, one above the other."""

    def rows(values: Iterable[NDArray[Any] | None]) -> Any:
        kept = [value for value in values if value is not None]
        return np.concatenate(kept) if len(kept) == len(parts) else None

    return Nested(
        Quantized(
            rows(part.four.codes for part in parts),
            rows(part.four.scales for part in parts),
            rows(part.four.zeros for part in parts),
        ),
        rows(part.rest for part in parts),
        rows(part.steps for part in parts),
        rows(part.offsets for part in parts),
        rows(part.units for part in parts),
    )


def by_rows(weight: Floats, nest: Callable[[Floats], Nested]) -> Nested:
    """Nests a matrix in pieces of rows: a head is by far the largest matrix, and rows do not depend on each other."""
    pieces = [
        nest(np.ascontiguousarray(weight[start : start + ROWS_AT_ONCE]))
        for start in range(0, weight.shape[0], ROWS_AT_ONCE)
    ]
    return pieces[0] if len(pieces) == 1 else stacked(pieces)


class Nester(Protocol):
    """Makes nested weights. `method` is what the manifest's recipe calls it, read after the last matrix.

    `text_digest` is of the text whose inputs it looks at, empty where it looks at weights alone.
    """

    @property
    def method(self) -> str: ...

    @property
    def text_digest(self) -> str: ...

    def nest(self, name: str, weight: Floats, block_size: int) -> Nested:
        """`weight` float32 [N, K] of the matrix `name`."""
        ...


@dataclass(frozen=True, slots=True)
class RoundToNearest:
    """Rounds every weight by itself; with `search`, clips each block where that lowers its squared error.

    Without search the 4-bit error stays within half a step and the residual at c = 16 loses nothing.
    With it the 4-bit weight is a little better, and blocks with clipped weights take a smaller c.
    """

    search: bool = False

    @property
    def method(self) -> str:
        return "rtn-search" if self.search else "rtn"

    @property
    def text_digest(self) -> str:
        return ""

    def nest(self, name: str, weight: Floats, block_size: int) -> Nested:  # noqa: ARG002
        return by_rows(weight, lambda rows: self._nest(rows, block_size))

    def _nest(self, weight: Floats, block_size: int) -> Nested:
        four = round_to_nearest(weight, block_size, 4, search=self.search)
        source = blocks(weight, block_size)
        if self.search:
            steps = choose_steps(source, four.codes, four.scales, four.zeros)
        else:
            steps = np.full(four.scales.shape, WIDEST_STEP, np.uint8)
        rest = residual(source, four.codes, four.scales, four.zeros, steps)
        return Nested(four, rest, steps)


def round_to_nearest(weight: Floats, block_size: int, bits: int, *, search: bool = False) -> Quantized:
    """Asymmetric rounding to nearest of [N, K], every block with its own scale and zero point."""
    if weight.shape[0] > ROWS_AT_ONCE:
        pieces = [
            round_to_nearest(weight[start : start + ROWS_AT_ONCE], block_size, bits, search=search)
            for start in range(0, weight.shape[0], ROWS_AT_ONCE)
        ]
        return Quantized(
            np.concatenate([piece.codes for piece in pieces]),
            np.concatenate([piece.scales for piece in pieces]),
            np.concatenate([piece.zeros for piece in pieces]),
        )
    source = blocks(weight, block_size)
    low, high = np.minimum(source.min(-1), 0), np.maximum(source.max(-1), 0)
    best = _rounded(source, low, high, bits)
    if not search:
        return best
    least = _squared_error(source, best)
    for shrink in _SHRINKS[1:]:
        candidate = _rounded(source, low * shrink, high * shrink, bits)
        error = _squared_error(source, candidate)
        better = error < least
        least = np.where(better, error, least)
        best = Quantized(
            np.where(better[..., None], candidate.codes, best.codes),
            np.where(better, candidate.scales, best.scales),
            np.where(better, candidate.zeros, best.zeros),
        )
    return best


def _rounded(source: Floats, low: Floats, high: Floats, bits: int) -> Quantized:
    most = np.float32(2**bits - 1)
    scales = ((high - low) / most).astype(np.float16).astype(np.float32)
    scales = np.maximum(scales, _LEAST_SCALE)
    zeros = np.clip(np.rint(-low / scales), 0, most)
    codes = np.clip(np.rint(source / scales[..., None]) + zeros[..., None], 0, most)
    return Quantized(codes.astype(np.uint8), scales, zeros.astype(np.uint8))


def _squared_error(source: Floats, made: Quantized) -> Floats:
    return np.asarray(((dequantize(made.codes, made.scales, made.zeros) - source) ** 2).sum(-1), np.float32)
