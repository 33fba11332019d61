"""Error compensation: rounds a weight column by column and lets later columns make up for earlier ones.

The method is GPTQ (Frantar et al., 2022, https://arxiv.org/abs/2210.17323): with inputs x of covariance
H, the error of rounding one column is spread over the columns not yet rounded so that the layer's output
changes least. It runs twice: over the 4-bit grid, then over the residual's grid around the 4-bit weight,
with the divisor c of each block chosen for what compensation leaves to it.

The 4-bit grid of a block is searched: ranges shrunk step by step, then two least-squares fits of the grid
to the codes it gave. A weight that comes from a 4-bit file (`quantize.grid`) has its own grid among those
tried; where that grid's zero lies between two codes, the 4-bit weight gets offsets.

Works on torch tensors, weights transposed [K, N] so that a column is contiguous. No models, no files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from quantize.grid import Grid
from release.planes import OFFSET_ZERO, RESIDUAL_ZERO

STEPS = (16, 14, 12, 11, 10, 9, 8, 7, 6, 5, 4)
_MOST = 15
_DAMPING = (0.05, 0.2, 1.0)  # parts of the mean diagonal; more only where less is not positive definite
_LEAST_SCALE = 2.0**-24
_SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8)
_FITS = 2

Tensor = Any
Round = Callable[[int, Tensor], Tensor]
Fit = Callable[[int, Tensor], Round]


@dataclass(frozen=True, slots=True)
class Planes:
    """Nested codes of one weight: codes and rest uint8 [K, N], scales, zeros and steps [nb, N].

    Offset codes [nb, N] and units [groups, N] where there are offsets.
    """

    codes: Tensor
    rest: Tensor
    scales: Tensor
    zeros: Tensor
    steps: Tensor
    offsets: Tensor | None
    units: Tensor | None
    four: Tensor  # float32 [N, K]: what a 4-bit session multiplies by


def compensate(weight: Tensor, covariance: Tensor, block_size: int, grid: Grid | None = None) -> Planes:
    """Nests `weight` [N, K] for inputs of `covariance` [K, K], the sum of x xᵀ. `grid` is the weight's own, if any."""
    return compensate_with(weight, inverse_factor(covariance), block_size, grid)


def compensate_with(weight: Tensor, factor: Tensor, block_size: int, grid: Grid | None = None) -> Planes:
    """The same with the covariance's `inverse_factor`, for weights that come in pieces of rows."""
    import torch

    first = _FourBits(weight, factor, block_size, grid)
    four = sweep(weight, factor, block_size, first.fit)
    scales, zeros = torch.stack(first.scales), torch.stack(first.zeros)
    plain = first.codes.float().unflatten(0, (-1, block_size)).sub_(zeros[:, None]).mul_(scales[:, None])
    second = _Residual(plain.flatten(0, 1), scales, factor, block_size)
    sweep(weight, factor, block_size, second.fit)
    found, units = (torch.stack(first.offsets), first.units) if first.with_offsets else (None, None)
    return Planes(
        first.codes, second.codes, scales, zeros, torch.stack(second.steps), found, units, four.T.contiguous()
    )


def inverse_factor(covariance: Tensor) -> Tensor:
    """Upper Cholesky factor of the damped inverse. Inputs that were always 0 compensate nothing."""
    import torch

    diagonal = covariance.diagonal()
    mean = diagonal.mean().clamp(min=1e-12)
    damped = covariance.clone()
    damped.diagonal()[diagonal == 0] = mean
    for part in _DAMPING:
        damped.diagonal().add_(part * mean)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if failed:
            continue
        upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
        if not failed:
            return upper
    raise ArithmeticError("the inputs' covariance is not positive definite, however damped: are there NaNs?")


def sweep(weight: Tensor, factor: Tensor, block_size: int, fit: Fit) -> Tensor:
    """Rounds `weight` [N, K] with compensation; returns the rounded weight as [K, N].

    `fit` sees each block [bs, N] as compensation left it and returns what rounds its columns.
    """
    import torch

    left = weight.T.contiguous().clone()
    made = torch.empty_like(left)
    for start in range(0, left.shape[0], block_size):
        end = start + block_size
        part, errors = left[start:end], torch.empty_like(left[start:end])
        rounding = fit(start, part)
        for column in range(block_size):
            at = start + column
            made[at] = rounding(column, part[column])
            torch.sub(part[column], made[at], out=errors[column]).div_(factor[at, at])
            part[column + 1 :].addr_(factor[at, at + 1 : end], errors[column], alpha=-1)
        left[end:].addmm_(factor[start:end, end:].T, errors, alpha=-1)
    return made


@dataclass(frozen=True, slots=True)
class _Grid:
    """Sixteen levels per column of a block, `low` the lowest; zero points and offset codes that say so."""

    scale: Tensor
    zero: Tensor
    offset: Tensor
    low: Tensor

    def codes(self, values: Tensor) -> Tensor:
        return ((values - self.low) / self.scale).round_().clamp_(0, _MOST)

    def chosen(self, other: _Grid, better: Tensor) -> _Grid:
        """This grid, but `other` where that is `better`."""
        return _Grid(
            other.scale.where(better, self.scale),
            other.zero.where(better, self.zero),
            other.offset.where(better, self.offset),
            other.low.where(better, self.low),
        )


class _FourBits:
    """The asymmetric 4-bit grid: scales rounded to half precision, whole zero points, offsets where wanted."""

    def __init__(self, weight: Tensor, factor: Tensor, block_size: int, grid: Grid | None) -> None:
        import torch

        self.codes = torch.empty(weight.shape[::-1], dtype=torch.uint8)
        self.scales: list[Tensor] = []
        self.zeros: list[Tensor] = []
        self.offsets: list[Tensor] = []
        self._importance = factor.diagonal().pow(-2)[:, None]
        self.with_offsets, self._width = grid is not None and grid.between, block_size
        self._source = None if grid is None else (_half(grid.gap.T), grid.low.T.contiguous())
        if self._source is not None:
            # Offsets reach half a gap of the group's widest block to either side.
            self.units = torch.stack([_half(group.amax(0) / _MOST) for group in self._source[0].split(block_size)])

    def fit(self, start: int, part: Tensor) -> Round:
        importance = self._importance[start : start + len(part)]
        block = start // self._width
        best, *others = (self._snapped(block, scale, low) for scale, low in self._candidates(block, part))
        least = _error(best, part, importance)
        for grid in others:
            best, least = _better(best, least, grid, part, importance)
        for _ in range(_FITS):
            grid = self._snapped(block, *self._fitted(best, part, importance))
            best, least = _better(best, least, grid, part, importance)
        self.scales.append(best.scale)
        self.zeros.append(best.zero)
        self.offsets.append((best.offset + OFFSET_ZERO).byte())

        def rounding(column: int, values: Tensor) -> Tensor:
            codes = best.codes(values)
            self.codes[start + column] = codes
            return codes.mul_(best.scale).add_(best.low)

        return rounding

    def _candidates(self, block: int, part: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        low, high = part.amin(0), part.amax(0)
        if self._source is not None:
            yield self._source[0][block], self._source[1][block]
        if self.with_offsets:
            for shrink in _SHRINKS:
                scale = _half((high - low) * shrink / _MOST)
                yield scale, (low + high - _MOST * scale) / 2
            return
        low, high = low.clamp_(max=0), high.clamp_(min=0)
        for shrink in _SHRINKS:
            yield _half((high - low) * shrink / _MOST), low * shrink

    def _fitted(self, grid: _Grid, part: Tensor, importance: Tensor) -> tuple[Tensor, Tensor]:
        """Least squares: the grid nearest to the weights, given the codes that `grid` gives them."""
        codes, share = grid.codes(part), importance / importance.sum()
        if not self.with_offsets:
            codes -= grid.zero
            scale = (share * codes * part).sum(0) / (share * codes.square()).sum(0).clamp_(min=1e-9)
            scale = _half(scale.where(scale > 0, grid.scale))
            return scale, -scale * grid.zero
        middle, mean = (share * codes).sum(0), (share * part).sum(0)
        spread = (share * (codes - middle).square()).sum(0)
        together = (share * (codes - middle) * (part - mean)).sum(0)
        scale = _half((together / spread.clamp(min=1e-6)).where((spread > 1e-6) & (together > 0), grid.scale))
        return scale, mean - scale * middle

    def _snapped(self, block: int, scale: Tensor, low: Tensor) -> _Grid:
        """The nearest grid that a release can hold."""
        zero = (-low / scale).round_().clamp_(0, _MOST)
        if not self.with_offsets:
            return _Grid(scale, zero, zero.new_zeros(zero.shape), -scale * zero)
        unit = self.units[block // self._width]
        offset = ((low + scale * zero) / unit).round_().clamp_(-OFFSET_ZERO, OFFSET_ZERO - 1)
        return _Grid(scale, zero, offset, offset * unit - scale * zero)


class _Residual:
    """The grid around a 4-bit weight without its offsets: 16 steps of scale / c, with c chosen per block."""

    def __init__(self, plain: Tensor, scales: Tensor, factor: Tensor, block_size: int) -> None:
        import torch

        self.codes = torch.empty(plain.shape, dtype=torch.uint8)
        self.steps: list[Tensor] = []
        self._plain, self._scales, self._width = plain, scales, block_size
        self._importance = factor.diagonal().pow(-2)[:, None]

    def fit(self, start: int, part: Tensor) -> Round:
        import torch

        base, scale = self._plain[start : start + len(part)], self._scales[start // self._width]
        importance = self._importance[start : start + len(part)]
        gap = part - base
        errors = []
        for step in STEPS:
            unit = scale / step
            nearest = (gap / unit).round_().clamp_(-RESIDUAL_ZERO, RESIDUAL_ZERO - 1).mul_(unit)
            errors.append((nearest - gap).square_().mul_(importance).sum(0))
        steps = torch.tensor(STEPS, dtype=torch.float32)[_least(errors)]
        unit = scale / steps
        self.steps.append(steps)

        def rounding(column: int, values: Tensor) -> Tensor:
            codes = ((values - base[column]) / unit).round_().clamp_(-RESIDUAL_ZERO, RESIDUAL_ZERO - 1)
            self.codes[start + column] = codes + RESIDUAL_ZERO
            return codes.mul_(unit).add_(base[column])

        return rounding


def _error(grid: _Grid, part: Tensor, importance: Tensor) -> Tensor:
    return grid.codes(part).mul_(grid.scale).add_(grid.low).sub_(part).square_().mul_(importance).sum(0)


def _better(best: _Grid, least: Tensor, grid: _Grid, part: Tensor, importance: Tensor) -> tuple[_Grid, Tensor]:
    error = _error(grid, part, importance)
    better = error < least
    return best.chosen(grid, better), error.where(better, least)


def _half(scale: Tensor) -> Tensor:
    """A scale as a release stores it."""
    return scale.half().float().clamp_(min=_LEAST_SCALE)


def _least(errors: Sequence[Tensor]) -> Tensor:
    import torch

    return torch.stack(list(errors)).argmin(0)
