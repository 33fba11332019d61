"""A float weight becomes nested codes: a 4-bit weight and the residual that makes it an 8-bit one.

`Nester` is the seam: given a weight it returns codes, scales, zero points and divisors. Rounding to
nearest needs nothing but the weight; methods that compensate errors know the layer's inputs and
choose smaller divisors. Scales are rounded to half precision before the codes are chosen, because
that is how a release stores them. Pure numpy; no files, no graphs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from release.planes import WIDEST_STEP, Codes, Floats, blocks, choose_steps, dequantize, residual

_LEAST_SCALE = np.float32(2**-24)  # the smallest half-precision number above zero
_SHRINKS = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8)


@dataclass(frozen=True, slots=True)
class Quantized:
    """One weight at one width: codes uint8 [N, nb, bs], scales float32 [N, nb], zeros uint8 [N, nb]."""

    codes: Codes
    scales: Floats
    zeros: Codes


@dataclass(frozen=True, slots=True)
class Nested:
    """A 4-bit weight and its residual codes at divisors `steps` uint8 [N, nb]."""

    four: Quantized
    rest: Codes
    steps: Codes


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
    most = 2**bits - 1
    scales = ((high - low) / most).astype(np.float16).astype(np.float32)
    scales = np.maximum(scales, _LEAST_SCALE)
    zeros = np.clip(np.rint(-low / scales), 0, most)
    codes = np.clip(np.rint(source / scales[..., None]) + zeros[..., None], 0, most)
    return Quantized(codes.astype(np.uint8), scales, zeros.astype(np.uint8))


def _squared_error(source: Floats, made: Quantized) -> Floats:
    return np.asarray(((dequantize(made.codes, made.scales, made.zeros) - source) ** 2).sum(-1), np.float32)
