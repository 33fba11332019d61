"""Error compensation: rounds a weight column by column and lets later columns make up for earlier ones.

The method is GPTQ (Frantar et al., 2022, https://arxiv.org/abs/2210.17323): with inputs x of covariance
H, the error of rounding one column is spread over the columns not yet rounded so that the layer's output
changes least. It runs twice: over the 4-bit grid, then over the residual's grid around the 4-bit weight,
with the divisor c of each block chosen for what compensation leaves to it.

Works on torch tensors, weights transposed [K, N] so that a column is contiguous. No models, no files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from release.planes import RESIDUAL_ZERO

STEPS = (16, 14, 12, 11, 10, 9, 8, 7, 6, 5, 4)
_MOST = 15
_DAMPING = (0.01, 0.1, 1.0)  # parts of the mean diagonal; more only where less is not positive definite
_LEAST_SCALE = 2.0**-24
_SHRINKS = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8)

Tensor = Any
Round = Callable[[int, Tensor], Tensor]
Fit = Callable[[int, Tensor], Round]


@dataclass(frozen=True, slots=True)
class Planes:
    """Nested codes of one weight: codes and rest uint8 [K, N], scales, zeros and steps [nb, N]."""

    codes: Tensor
    rest: Tensor
    scales: Tensor
    zeros: Tensor
    steps: Tensor
    four: Tensor  # float32 [N, K]: what a 4-bit session multiplies by


def compensate(weight: Tensor, covariance: Tensor, block_size: int) -> Planes:
    """Nests `weight` [N, K] for inputs of `covariance` [K, K], the sum of x xᵀ. Both stay as they are."""
    import torch

    factor = inverse_factor(covariance)
    first = _FourBits(weight, factor)
    four = sweep(weight, factor, block_size, first.fit)
    scales, zeros = torch.stack(first.scales), torch.stack(first.zeros)
    second = _Residual(four, scales, factor, block_size)
    sweep(weight, factor, block_size, second.fit)
    return Planes(first.codes, second.codes, scales, zeros, torch.stack(second.steps), four.T.contiguous())


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


class _FourBits:
    """The asymmetric 4-bit grid: scales rounded to half precision, integer zero points, a small search."""

    def __init__(self, weight: Tensor, factor: Tensor) -> None:
        import torch

        self.codes = torch.empty(weight.shape[::-1], dtype=torch.uint8)
        self.scales: list[Tensor] = []
        self.zeros: list[Tensor] = []
        self._importance = factor.diagonal().pow(-2)[:, None]

    def fit(self, start: int, part: Tensor) -> Round:
        low, high = part.amin(0).clamp(max=0), part.amax(0).clamp(min=0)
        importance = self._importance[start : start + len(part)]
        tried = [_grid(low * shrink, high * shrink) for shrink in _SHRINKS]
        errors = [
            ((((part / scale).round_() + zero).clamp_(0, _MOST) - zero) * scale - part)
            .square_()
            .mul_(importance)
            .sum(0)
            for scale, zero in tried
        ]
        best = _least(errors)
        scale, zero = (_chosen([entry[kind] for entry in tried], best) for kind in (0, 1))
        self.scales.append(scale)
        self.zeros.append(zero)

        def rounding(column: int, values: Tensor) -> Tensor:
            codes = (values / scale).round_().add_(zero).clamp_(0, _MOST)
            self.codes[start + column] = codes
            return codes.sub_(zero).mul_(scale)

        return rounding


class _Residual:
    """The grid around a 4-bit weight: 16 steps of scale / c, with c chosen per block."""

    def __init__(self, four: Tensor, scales: Tensor, factor: Tensor, block_size: int) -> None:
        import torch

        self.codes = torch.empty(four.shape, dtype=torch.uint8)
        self.steps: list[Tensor] = []
        self._four, self._scales, self._width = four, scales, block_size
        self._importance = factor.diagonal().pow(-2)[:, None]

    def fit(self, start: int, part: Tensor) -> Round:
        import torch

        base, scale = self._four[start : start + len(part)], self._scales[start // self._width]
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


def _grid(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    scale = ((high - low) / _MOST).half().float().clamp_(min=_LEAST_SCALE)
    return scale, (-low / scale).round_().clamp_(0, _MOST)


def _least(errors: Sequence[Tensor]) -> Tensor:
    import torch

    return torch.stack(list(errors)).argmin(0)


def _chosen(values: Sequence[Tensor], index: Tensor) -> Tensor:
    import torch

    return torch.stack(list(values)).gather(0, index[None])[0]
