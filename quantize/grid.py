"""Recognizes a weight that comes from a 4-bit file: per block, evenly spaced levels with any zero.

Such files (GGUF's Q4_0, Q4_1 and the like) say w = d * q + m with codes q in 0..15, and their zero -m / d
lies anywhere. Read as floats the levels are still there, up to the rounding of the float format. A
weight that is recognized can be kept on its own levels instead of being rounded a second time.

Works on torch tensors. No models, no files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_MOST, _FEWEST = 15, 8  # gaps between the lowest and the highest level that a block uses
_NEAR = 0.1  # of a gap; bf16 moves a level by up to 0.035
_BLOCKS_ON_GRID = 0.99
_ZERO_AT_CODE = 0.02

Tensor = Any


@dataclass(frozen=True, slots=True)
class Grid:
    """The levels of a weight's blocks: gap and lowest level, float32 [N, nb]; `between`: zero is no code."""

    gap: Tensor
    low: Tensor
    between: bool


def source_grid(weight: Tensor, block_size: int) -> Grid | None:
    """The grid that nearly all blocks of `weight` [N, K] lie on, or None."""
    import torch

    spans = weight.unflatten(1, (-1, block_size))
    low, high = spans.amin(2), spans.amax(2)
    gap = ((high - low) / _MOST).clamp_(min=torch.finfo(torch.float32).tiny)
    worst = _worst(spans, gap, low)
    for count in range(_MOST - 1, _FEWEST - 1, -1):
        if bool((worst <= _NEAR).all()):
            break
        other = ((high - low) / count).clamp_(min=torch.finfo(torch.float32).tiny)
        error = _worst(spans, other, low)
        better = (error <= _NEAR) & (worst > _NEAR)
        gap, worst = other.where(better, gap), error.where(better, worst)
    if float((worst <= _NEAR).float().mean()) < _BLOCKS_ON_GRID:
        return None
    zero = -low / gap
    off = (zero - zero.round()).abs().mean()
    return Grid(gap, low, bool(off > _ZERO_AT_CODE))


def _worst(spans: Tensor, gap: Tensor, low: Tensor) -> Tensor:
    """How far a block's worst weight lies from a level, in gaps."""
    places = (spans - low[..., None]) / gap[..., None]
    return (places - places.round()).abs_().amax(2)
