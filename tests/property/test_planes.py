"""Laws of nested weights."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from quantize.nest import RoundToNearest, round_to_nearest
from release.planes import (
    block_sums,
    blocks,
    choose_steps,
    compose,
    compose_blocks,
    compose_packed,
    dequantize,
    offset_values,
    pack4,
    packz,
    residual,
    split,
    unpack4,
    unpackz,
    widened,
    with_offsets,
)

BLOCK = 32
nibbles = st.integers(0, 15)
rows = st.integers(1, 3)
counts = st.integers(1, 5)


@st.composite
def planes(draw: st.DrawFn) -> dict[str, np.ndarray]:
    shape = (draw(rows), draw(counts))
    codes = arrays(np.uint8, (*shape, BLOCK), elements=nibbles)
    return {
        "codes": draw(codes),
        "rest": draw(codes),
        "zeros": draw(arrays(np.uint8, shape, elements=nibbles)),
        "steps": draw(arrays(np.uint8, shape, elements=st.integers(1, 16))),
        "scales": draw(arrays(np.float32, shape, elements=st.floats(2**-14, 8, width=32))),
    }


@st.composite
def weights(draw: st.DrawFn) -> np.ndarray:
    shape = (draw(rows), draw(counts) * BLOCK)
    spread = draw(st.sampled_from([0.0, 1e-6, 0.01, 1.0, 50.0]))
    return draw(arrays(np.float32, shape, elements=st.floats(-1, 1, width=32))) * np.float32(spread)


@given(arrays(np.uint8, (2, 3, BLOCK)))
def test_composing_what_was_split_gives_it_back(q8: np.ndarray) -> None:
    """compose(split(w)) = w, for every 8-bit code at c = 16."""
    codes, rest = split(q8)
    ones = np.ones((2, 3), np.float32)
    again, _, _ = compose(codes, rest, ones, np.zeros((2, 3), np.uint8), np.full((2, 3), 16, np.uint8))
    assert (again == q8).all()
    assert (compose_packed(pack4(codes), pack4(rest)) == q8).all()


@given(planes())
def test_composed_codes_fit_a_byte_at_every_step(p: dict[str, np.ndarray]) -> None:
    """0 <= c q4 + r <= 255 and 0 <= c z + 8 <= 255, so uint8 arithmetic never wraps."""
    q8, _, z8 = compose(p["codes"], p["rest"], p["scales"], p["zeros"], p["steps"])
    wide = p["codes"].astype(int) * p["steps"].astype(int)[..., None] + p["rest"]
    assert (q8 == wide).all()
    assert wide.min() >= 0
    assert wide.max() <= 255
    assert (z8 == p["zeros"].astype(int) * p["steps"] + 8).all()


@given(planes())
def test_composing_adds_the_residual(p: dict[str, np.ndarray]) -> None:
    """(s/c)(q8 - z8) = s(q4 - z) + (s/c)(r - 8)."""
    composed = dequantize(*compose(p["codes"], p["rest"], p["scales"], p["zeros"], p["steps"]))
    step = (p["scales"] / p["steps"])[..., None]
    expected = dequantize(p["codes"], p["scales"], p["zeros"]) + step * (p["rest"].astype(np.float32) - 8)
    np.testing.assert_allclose(composed, expected, rtol=1e-4, atol=1e-4)


@given(planes())
def test_packed_and_unpacked_composition_agree(p: dict[str, np.ndarray]) -> None:
    q8, s8, z8 = compose(p["codes"], p["rest"], p["scales"], p["zeros"], p["steps"])
    assert (compose_packed(pack4(p["codes"]), pack4(p["rest"]), p["steps"]) == q8).all()
    scales, zeros = compose_blocks(p["scales"], p["zeros"], p["steps"])
    assert (scales == s8).all()
    assert (zeros == z8).all()


@given(planes())
def test_packing_loses_nothing(p: dict[str, np.ndarray]) -> None:
    assert (unpack4(pack4(p["codes"])) == p["codes"]).all()
    zeros = p["zeros"]
    assert packz(zeros).shape == (zeros.shape[0], (zeros.shape[1] + 1) // 2)
    assert (unpackz(packz(zeros), zeros.shape[1]) == zeros).all()


@given(weights())
def test_rounding_stays_within_half_a_step_and_the_residual_within_a_sixteenth(weight: np.ndarray) -> None:
    """Round-to-nearest errs by at most s/2 (and the rounding of the scale), nested by at most s/16."""
    nested = RoundToNearest().nest("w", weight, BLOCK)
    source, four = blocks(weight, BLOCK), nested.four
    slack = 0.02 * four.scales[..., None] + 1e-6
    error = np.abs(dequantize(four.codes, four.scales, four.zeros) - source)
    assert (error <= 0.5 * four.scales[..., None] + slack).all()
    eight = compose(four.codes, nested.rest, four.scales, four.zeros, nested.steps)
    assert (np.abs(dequantize(*eight) - source) <= four.scales[..., None] / 16 + slack).all()


@given(weights(), st.sampled_from([4, 8]))
def test_codes_stay_in_range_and_scales_survive_half_precision(weight: np.ndarray, bits: int) -> None:
    made = round_to_nearest(weight, BLOCK, bits)
    assert made.codes.max() < 2**bits
    assert made.zeros.max() < 2**bits
    assert (made.scales > 0).all()
    assert (made.scales.astype(np.float16).astype(np.float32) == made.scales).all()


@given(weights())
def test_searching_never_makes_a_block_worse(weight: np.ndarray) -> None:
    source = blocks(weight, BLOCK)

    def error(search: bool) -> np.ndarray:
        made = round_to_nearest(weight, BLOCK, 4, search=search)
        return ((dequantize(made.codes, made.scales, made.zeros) - source) ** 2).sum(-1)

    assert (error(True) <= error(False)).all()


@given(planes(), weights())
def test_the_chosen_step_is_the_best_of_the_candidates(p: dict[str, np.ndarray], weight: np.ndarray) -> None:
    source = blocks(weight, BLOCK)
    rows_, count = (min(a, b) for a, b in zip(source.shape[:2], p["codes"].shape[:2], strict=True))
    part = {key: value[:rows_, :count] for key, value in p.items()}
    source = source[:rows_, :count]

    def error(steps: np.ndarray) -> np.ndarray:
        rest = residual(source, part["codes"], part["scales"], part["zeros"], steps)
        made = compose(part["codes"], rest, part["scales"], part["zeros"], steps)
        return ((dequantize(*made) - source) ** 2).sum(-1)

    candidates = (16, 8, 4)
    chosen = error(choose_steps(source, part["codes"], part["scales"], part["zeros"], candidates))
    for candidate in candidates:
        assert (chosen <= error(np.full((rows_, count), candidate, np.uint8))).all()


@given(planes(), st.integers(0, 2**32 - 1))
def test_offsets_are_what_the_block_sums_add(p: dict[str, np.ndarray], seed: int) -> None:
    """A product with offsets, the way a session does it: widened weights by inputs with their blocks' sums."""
    rows_, count, _ = p["codes"].shape
    columns, random = count * BLOCK, np.random.default_rng(seed)
    offsets = random.integers(0, 16, (rows_, count)).astype(np.uint8)
    units = random.uniform(0.1, 1, (rows_, -(-count // BLOCK))).astype(np.float32)
    inputs = random.normal(size=columns).astype(np.float32)
    sums = _product(*block_sums(columns, BLOCK), inputs)
    assert np.allclose(sums[:count], inputs.reshape(count, BLOCK).sum(-1), atol=1e-4)
    wide = with_offsets(pack4(p["codes"]), p["scales"], packz(p["zeros"]), offsets, units)
    both = np.concatenate([inputs, sums])
    assert both.size == widened(columns, BLOCK)
    weight = dequantize(p["codes"], p["scales"], p["zeros"]) + offset_values(offsets, units)[..., None]
    assert np.allclose(_product(*wide, both), weight.reshape(rows_, columns) @ inputs, rtol=1e-4, atol=1e-3)


def _product(packed: np.ndarray, scales: np.ndarray, zeros: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """What a 4-bit product gives for one input."""
    weight = dequantize(unpack4(packed), scales, unpackz(zeros, scales.shape[1]))
    made: np.ndarray = weight.reshape(len(weight), -1) @ inputs
    return made
