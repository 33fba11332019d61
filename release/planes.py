"""Nested weights: a 4-bit weight and the residual that makes it an 8-bit one.

A block of weights is w = s * (q4 - z) with codes q4 and zero point z in 0..15. The residual plane
holds codes r in 0..15, meaning r - 8 steps of s / c, with an integer 1 <= c <= 16 per block. Together
they are an ordinary asymmetric 8-bit weight:

    q8 = c * q4 + r        scale s / c        zero point c * z + 8        all within 0..255

so w = (s / c) * (q8 - (c * z + 8)). Laws (held by property tests): the composed codes never leave
0..255; composing equals adding the residual to the 4-bit weight; splitting an 8-bit code at c = 16
and composing it again gives the same code. c = 16 is exact for round-to-nearest, whose error stays
within s / 2; error-compensated weights need smaller c.

A 4-bit weight may also have an offset per block, for weights whose zero lies between two codes:

    w = s * (q4 - z) + u * (f - 8)        codes f in 0..15, unit u per row and group of `block_size` blocks

A block's offset meets the sum of the block's inputs, so a product takes the sums of its inputs' blocks as
further inputs and the codes f as their 4-bit weights (`with_offsets`, `block_sums`). The 8-bit weight needs no
offsets: its zero point lies on steps of s / c, and the residual is chosen to make up for the rest.

Shapes: N rows, nb blocks a row, bs weights a block. Codes unpacked are uint8 [N, nb, bs]; packed
[N, nb, bs / 2], the lower nibble first, as onnxruntime's MatMulNBits wants them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.uint8]
Floats = NDArray[np.float32]

RESIDUAL_ZERO = 8
WIDEST_STEP = 16
OFFSET_ZERO = 8


def blocks(weight: Floats, block_size: int) -> Floats:
    """[N, K] as [N, K / block_size, block_size]."""
    rows, columns = weight.shape
    if columns % block_size:
        raise ValueError(f"{columns} columns are not a multiple of the block size {block_size}")
    return np.ascontiguousarray(weight, dtype=np.float32).reshape(rows, columns // block_size, block_size)


def pack4(codes: Codes) -> Codes:
    """Two 4-bit codes a byte along the last axis, which must be even."""
    return np.asarray(codes[..., 0::2] | (codes[..., 1::2] << 4), dtype=np.uint8)


def unpack4(packed: Codes) -> Codes:
    """The reverse of `pack4`."""
    out = np.empty((*packed.shape[:-1], packed.shape[-1] * 2), np.uint8)
    np.bitwise_and(packed, 0x0F, out=out[..., 0::2])
    np.right_shift(packed, 4, out=out[..., 1::2])
    return out


def packz(zeros: Codes) -> Codes:
    """4-bit values [N, nb] packed to [N, ceil(nb / 2)]; an odd row ends in a zero nibble."""
    if zeros.shape[1] % 2:
        zeros = np.pad(zeros, ((0, 0), (0, 1)))
    return pack4(zeros)


def unpackz(packed: Codes, count: int) -> Codes:
    """The reverse of `packz`: [N, count]."""
    return np.ascontiguousarray(unpack4(packed)[:, :count])


def dequantize(codes: Codes, scales: Floats, zeros: Codes) -> Floats:
    """Weights [N, nb, bs] of codes of any width, with scales and zeros [N, nb]."""
    return np.asarray(scales[..., None] * (codes.astype(np.float32) - zeros.astype(np.float32)[..., None]), np.float32)


def residual(weight: Floats, codes: Codes, scales: Floats, zeros: Codes, steps: Codes) -> Codes:
    """The residual codes that bring the 4-bit weight closest to `weight` [N, nb, bs] at divisors `steps` [N, nb]."""
    error = (weight - dequantize(codes, scales, zeros)) * (steps / scales)[..., None]
    return np.asarray(np.clip(np.rint(error), -RESIDUAL_ZERO, RESIDUAL_ZERO - 1) + RESIDUAL_ZERO, np.uint8)


def choose_steps(
    weight: Floats, codes: Codes, scales: Floats, zeros: Codes, candidates: tuple[int, ...] = (16, 12, 8, 6, 4)
) -> Codes:
    """Per block the divisor c, of `candidates`, whose residual leaves the smallest squared error: [N, nb]."""
    best = np.full(scales.shape, candidates[0], np.uint8)
    least: Floats | None = None
    for candidate in candidates:
        steps = np.full(scales.shape, candidate, np.uint8)
        composed = compose(codes, residual(weight, codes, scales, zeros, steps), scales, zeros, steps)
        error = ((dequantize(*composed) - weight) ** 2).sum(-1)
        if least is None:
            least = error
            continue
        better = error < least
        best[better], least = candidate, np.minimum(error, least)
    return best


def compose(codes: Codes, rest: Codes, scales: Floats, zeros: Codes, steps: Codes) -> tuple[Codes, Floats, Codes]:
    """8-bit codes, scales and zero points of a 4-bit weight and its residual; all unpacked."""
    q8 = codes * steps[..., None] + rest
    return q8, *compose_blocks(scales, zeros, steps)


def compose_blocks(scales: Floats, zeros: Codes, steps: Codes) -> tuple[Floats, Codes]:
    """The 8-bit scales and zero points [N, nb]."""
    return (scales / steps).astype(np.float32), zeros * steps + np.uint8(RESIDUAL_ZERO)


def compose_packed(hi: Codes, lo: Codes, steps: Codes | None = None) -> Codes:
    """8-bit codes [N, nb, bs] of packed planes; `steps` [N, nb] is None for c = 16 everywhere.

    One pass over the planes and one output array: a whole model is composed this way when it loads.
    """
    out = np.empty((*hi.shape[:-1], hi.shape[-1] * 2), np.uint8)
    if steps is None:
        np.bitwise_or(hi << 4, lo & 0x0F, out=out[..., 0::2])
        np.bitwise_or(hi & 0xF0, lo >> 4, out=out[..., 1::2])
        return out
    per_block = steps[..., None]
    np.add((hi & 0x0F) * per_block, lo & 0x0F, out=out[..., 0::2])
    np.add((hi >> 4) * per_block, lo >> 4, out=out[..., 1::2])
    return out


def split(codes: Codes) -> tuple[Codes, Codes]:
    """An 8-bit code as 4-bit code and residual at c = 16."""
    return np.asarray(codes >> 4, np.uint8), np.asarray(codes & 0x0F, np.uint8)


def widened(columns: int, block_size: int) -> int:
    """How many inputs a product with offsets takes: `columns` and a sum per block, in whole blocks."""
    groups = -(-columns // block_size // block_size)
    return columns + groups * block_size


def offset_values(offsets: Codes, units: Floats) -> Floats:
    """What offset codes [N, nb] add to every weight of their blocks, with units [N, groups]: [N, nb]."""
    per_block = np.repeat(units, -(-offsets.shape[1] // units.shape[1]), axis=1)[:, : offsets.shape[1]]
    return np.asarray((offsets.astype(np.float32) - OFFSET_ZERO) * per_block, np.float32)


def with_offsets(
    packed: Codes, scales: Floats, zeros: Codes, offsets: Codes, units: Floats
) -> tuple[Codes, Floats, Codes]:
    """A packed 4-bit weight with its offset codes as weights of the block sums; packed like the given one.

    Codes [N, nb, bs / 2], scales [N, nb], zeros packed, offsets [N, nb] unpacked, units [N, groups].
    """
    rows, count, half = packed.shape
    groups = units.shape[1]
    further = np.full((rows, groups * half * 2), OFFSET_ZERO, np.uint8)
    further[:, :count] = offsets
    middle = np.full((rows, groups), OFFSET_ZERO, np.uint8)
    return (
        np.concatenate([packed, pack4(further).reshape(rows, groups, half)], axis=1),
        np.concatenate([scales, units], axis=1),
        packz(np.concatenate([unpackz(zeros, count), middle], axis=1)),
    )


def block_sums(columns: int, block_size: int) -> tuple[Codes, Floats, Codes]:
    """The packed 4-bit weight, of ones and zeros, that turns `columns` inputs into the sums of their blocks."""
    count, rows = columns // block_size, widened(columns, block_size) - columns
    codes = np.zeros((rows, count, block_size), np.uint8)
    codes[np.arange(count), np.arange(count)] = 1
    return pack4(codes), np.ones((rows, count), np.float32), packz(np.zeros((rows, count), np.uint8))
