"""Bounds are understood as written and hold per precision."""

from __future__ import annotations

import numpy as np
import pytest

from quantize.evaluation import Evaluation, Level, Width
from quantize.gates import Gates, QualityRefused, bounds


def evaluation() -> Evaluation:
    level = Level(0.1, 0.1, 0.01, 1024)
    nothing = np.zeros(0, np.float32)
    return Evaluation(
        {4: Width(0.15, 0.8, level, nothing), 8: Width(0.004, 0.96, level, nothing)}, 4096, 0, "d", "x86-avx2"
    )


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ((), {}),
        (("0.2",), {4: 0.2, 8: 0.2}),
        (("4=0.2", "8=0.01"), {4: 0.2, 8: 0.01}),
        (("0.2", "8=0.01"), {4: 0.2, 8: 0.01}),
    ],
)
def test_a_bound_is_for_one_precision_or_for_both(given: tuple[str, ...], meant: dict[int, float]) -> None:
    assert bounds(given) == meant


@pytest.mark.parametrize("given", ["", "much", "4=", "5=0.1", "-0.1", "nan", "4=inf", "=0.1x"])
def test_what_is_no_bound_is_said(given: str) -> None:
    with pytest.raises(ValueError, match="is no bound"):
        bounds([given])


def test_a_release_passes_or_is_refused_with_its_figures() -> None:
    found = evaluation()
    Gates().demand(found)
    Gates({4: 0.15, 8: 0.004}, {4: 0.8, 8: 0.96}).demand(found)
    assert not Gates()
    with pytest.raises(
        QualityRefused, match=r"4-bit KL 0\.1500 is over 0\.1; 8-bit top-1 agreement 0\.9600 is under 0\.97"
    ):
        Gates({4: 0.1}, {8: 0.97}).demand(found)
