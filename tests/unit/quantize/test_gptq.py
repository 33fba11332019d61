"""Compensated weights change a layer's output less than rounded ones, and nest as the planes demand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quantize.gptq import STEPS, compensate
from quantize.nest import RoundToNearest
from release.planes import compose, dequantize

BLOCK, ROWS, COLUMNS = 32, 24, 96


@pytest.fixture(scope="module")
def layer() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A weight, and correlated inputs of one kind to compensate on and to measure with."""
    generator = torch.Generator().manual_seed(3)
    mixing = torch.randn(COLUMNS, COLUMNS, generator=generator) * torch.logspace(0, -2, COLUMNS)
    inputs = torch.randn(3000, COLUMNS, generator=generator) @ mixing.T
    return torch.randn(ROWS, COLUMNS, generator=generator), inputs[:2000], inputs[2000:]


def arrays(values: torch.Tensor) -> np.ndarray:
    return np.ascontiguousarray(values.T.numpy())


def both_widths(weight: torch.Tensor, inputs: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The compensated 4-bit weight, the 8-bit one composed from it, and the divisors."""
    planes = compensate(weight, inputs.T @ inputs, BLOCK)
    codes, rest = (arrays(part).reshape(ROWS, -1, BLOCK) for part in (planes.codes, planes.rest))
    scales = arrays(planes.scales)
    zeros, steps = (arrays(part).astype(np.uint8) for part in (planes.zeros, planes.steps))
    four = dequantize(codes, scales, zeros)
    eight = compose(codes, rest, scales, zeros, steps)
    np.testing.assert_allclose(four.reshape(ROWS, COLUMNS), planes.four.numpy(), rtol=1e-6)
    residual = (rest.astype(np.float32) - 8) * (scales / steps)[..., None]
    np.testing.assert_allclose(dequantize(*eight), four + residual, rtol=1e-4, atol=1e-5)
    assert max(codes.max(), zeros.max(), rest.max()) <= 15
    assert (eight[0] == codes.astype(int) * steps[..., None] + rest).all()
    assert (scales == scales.astype(np.float16)).all()
    return four.reshape(ROWS, COLUMNS), dequantize(*eight).reshape(ROWS, COLUMNS), steps


def output_error(made: np.ndarray, weight: torch.Tensor, inputs: torch.Tensor) -> float:
    return float(((torch.from_numpy(made) - weight) @ inputs.T).square().mean())


def test_outputs_on_unseen_inputs_change_less_than_by_rounding(
    layer: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    weight, seen, unseen = layer
    four, eight, steps = both_widths(weight, seen)
    nested = RoundToNearest().nest("w", weight.numpy(), BLOCK)
    plain = nested.four
    rounded4 = dequantize(plain.codes, plain.scales, plain.zeros).reshape(ROWS, COLUMNS)
    composed = compose(plain.codes, nested.rest, plain.scales, plain.zeros, nested.steps)
    rounded8 = dequantize(*composed).reshape(ROWS, COLUMNS)
    assert output_error(four, weight, unseen) < 0.5 * output_error(rounded4, weight, unseen)
    assert output_error(eight, weight, unseen) < 2 * output_error(rounded8, weight, unseen)
    assert set(np.unique(steps)) <= set(STEPS)
    assert len(np.unique(steps)) > 1


def test_inputs_that_were_always_zero_or_alike_do_no_harm() -> None:
    weight = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(5))
    one = torch.randn(1, COLUMNS, generator=torch.Generator().manual_seed(6))
    one[:, ::7] = 0
    for inputs in (one, torch.zeros(1, COLUMNS)):
        four, eight, _ = both_widths(weight, inputs)
        assert np.isfinite(four).all()
        assert np.abs(eight - weight.numpy()).max() < 1.5


def test_inputs_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ArithmeticError, match="NaN"):
        compensate(torch.ones(ROWS, COLUMNS), torch.full((COLUMNS, COLUMNS), float("nan")), BLOCK)
