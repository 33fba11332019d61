"""Weights from 4-bit files are recognized and kept; others are not taken for such."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quantize.gptq import Planes, compensate
from quantize.grid import source_grid
from release.planes import compose, dequantize, offset_values

ROWS, COLUMNS, BLOCK = 16, 128, 32


def from_file(seed: int, *, whole_zeros: bool, levels: int = 16) -> torch.Tensor:
    """Weights as a GGUF file holds them: gap and minimum in half precision, then read as bf16."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, levels, (ROWS, COLUMNS // BLOCK, BLOCK), generator=generator).float()
    codes[..., 0], codes[..., 1] = 0, levels - 1
    gap = torch.rand(ROWS, COLUMNS // BLOCK, 1, generator=generator).mul(0.05).add(0.01).half().float()
    zero = torch.rand(ROWS, COLUMNS // BLOCK, 1, generator=generator) * 8 + 3
    low = -gap * zero.round() if whole_zeros else (-gap * zero).half().float()
    return (gap * codes + low).flatten(1).bfloat16().float()


def covariance(seed: int) -> torch.Tensor:
    inputs = torch.randn(600, COLUMNS, generator=torch.Generator().manual_seed(seed))
    return inputs.T @ inputs


def four_and_eight(planes: Planes) -> tuple[np.ndarray, np.ndarray]:
    def part(values: torch.Tensor) -> np.ndarray:
        return np.ascontiguousarray(values.T.numpy())

    codes, rest = (part(values).reshape(ROWS, -1, BLOCK) for values in (planes.codes, planes.rest))
    scales = part(planes.scales)
    zeros, steps = (part(values).astype(np.uint8) for values in (planes.zeros, planes.steps))
    four = dequantize(codes, scales, zeros)
    if planes.offsets is not None and planes.units is not None:
        four = four + offset_values(part(planes.offsets), part(planes.units))[..., None]
    eight = dequantize(*compose(codes, rest, scales, zeros, steps))
    return four.reshape(ROWS, COLUMNS), eight.reshape(ROWS, COLUMNS)


@pytest.mark.parametrize("seed", range(3))
def test_a_grid_with_its_zero_between_codes_is_kept(seed: int) -> None:
    weight = from_file(seed, whole_zeros=False)
    grid = source_grid(weight, BLOCK)
    assert grid is not None
    assert grid.between
    planes = compensate(weight, covariance(seed), BLOCK, grid)
    four, eight = four_and_eight(planes)
    np.testing.assert_allclose(four, planes.four.numpy(), rtol=1e-5, atol=1e-6)
    gap = grid.gap.repeat_interleave(BLOCK, 1).numpy()
    assert np.abs((four - weight.numpy()) / gap).mean() < 0.05, "to nearest it is about a quarter"
    assert np.abs((eight - weight.numpy()) / gap).mean() < 0.04


@pytest.mark.parametrize("levels", [16, 14])
def test_a_grid_with_whole_zeros_needs_no_offsets(levels: int) -> None:
    weight = from_file(7, whole_zeros=True, levels=levels)
    grid = source_grid(weight, BLOCK)
    assert grid is not None
    assert not grid.between
    planes = compensate(weight, covariance(7), BLOCK, grid)
    assert planes.offsets is None
    four, _ = four_and_eight(planes)
    assert np.abs(four - weight.numpy()).max() < 0.1 * float(grid.gap.max())


def test_other_weights_are_not_taken_for_a_grid() -> None:
    weight = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1))
    assert source_grid(weight, BLOCK) is None
    assert source_grid(weight.bfloat16().float(), BLOCK) is None
    mixed = from_file(2, whole_zeros=False)
    mixed[: ROWS // 2] = weight[: ROWS // 2]
    assert source_grid(mixed, BLOCK) is None


def test_a_constant_weight_does_no_harm() -> None:
    weight = torch.full((ROWS, COLUMNS), 0.25)
    grid = source_grid(weight, BLOCK)
    planes = compensate(weight, covariance(3), BLOCK, grid)
    four, eight = four_and_eight(planes)
    assert np.isfinite(four).all()
    assert np.isfinite(eight).all()
