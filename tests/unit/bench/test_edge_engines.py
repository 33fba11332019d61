"""Which way round the figures of `weir bench edge` about steps are: more than 1 always says that Weir is faster.

The fake sides take known times, so every figure has one right value.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.edge import engines
from bench.edge.engines import GENAI, LLAMA, OURS, SYMMETRIC, Sides
from bench.edge.plan import Plan
from tests.fakes.progress import Recorder
from tests.fakes.side import FakeSide

_IDS = [5, 6, 7]
_ROUNDS, _STEPS, _BATCHES = 3, 5, (1, 8, 16)


def _measured(only: tuple[str, ...], running: Mapping[tuple[str, int], FakeSide]) -> dict[str, Any]:
    plan = Plan(Path("none"), only=only, rounds=_ROUNDS, steps=_STEPS, batches=_BATCHES)
    return engines.measure(plan, _IDS, Sides(dict(running)), Recorder())


def _sides() -> dict[tuple[str, int], FakeSide]:
    return {
        (OURS, 4): FakeSide(
            {1: 0.010, 8: 0.020, 16: 0.040},
            prefill_s=0.100,
            choose_s={1: 0.0005, 8: 0.0012},
            argmax_s={1: 0.0002, 8: 0.0004},
        ),
        (OURS, 8): FakeSide({8: 0.040}),
        (GENAI, 4): FakeSide({1: 0.012, 8: 0.030, 16: 0.080}, prefill_s=0.130),
        (GENAI, 8): FakeSide({1: 0.016}),
        (SYMMETRIC, 4): FakeSide({1: 0.008}),
        (LLAMA, 4): FakeSide({1: 0.015, 8: 0.060, 16: 0.160}, prefill_s=0.250),
    }


def test_decoding_is_compared_by_tokens_a_second_ours_over_theirs() -> None:
    found = _measured(("decode",), _sides())
    assert found["decode_vs_genai"] == 1.2
    assert found["decode_vs_genai_symmetric"] == 0.8
    assert found["decode_vs_llamacpp"] == 1.5


def test_tokens_a_second_grow_with_the_batch_and_shrink_with_the_step() -> None:
    slower = 1.5**2  # of the middle one of three rounds
    table = _measured(("decode",), _sides())["decode_tokens_per_s"]
    for (name, bits), side in _sides().items():
        if bits != 4:
            continue
        expected = {str(batch): batch / seconds / slower for batch, seconds in side.steps_s.items()}
        assert table[name] == pytest.approx(expected, abs=0.1)


def test_prefill_is_compared_by_time_theirs_over_ours() -> None:
    found = _measured(("prefill",), _sides())
    assert (found["prefill_vs_llamacpp"], found["prefill_vs_genai"]) == (2.5, 1.3)
    assert found["prefill_ms"] == {OURS: 225.0, GENAI: 292.5, LLAMA: 562.5}


def test_eight_sequences_of_ours_are_compared_with_one_of_genais_at_the_same_width() -> None:
    sides = _sides()
    found = _measured(("batch8",), sides)
    # 400 tokens a second over 83.3; 200 over 62.5.
    assert found["batch8_vs_genai_batch1"] == {"4": 4.8, "8": 3.2}
    assert not sides[LLAMA, 4].asked and not sides[SYMMETRIC, 4].asked


def test_signals_share_is_what_choosing_takes_beyond_an_argmax_of_a_whole_step() -> None:
    assert _measured(("signals",), _sides())["signals_share"] == {"1": 0.03, "8": 0.04}


def test_without_a_peer_its_figures_are_null_and_the_others_stay() -> None:
    sides = {key: side for key, side in _sides().items() if key[0] != GENAI}
    found = _measured(("decode", "prefill", "batch8"), sides)
    assert found["decode_vs_genai"] is found["prefill_vs_genai"] is None
    assert found["batch8_vs_genai_batch1"] == {"4": None, "8": None}
    assert (found["decode_vs_llamacpp"], found["prefill_vs_llamacpp"]) == (1.5, 2.5)
