"""Weights that a session has packed are given back; those it reads, or that are read elsewhere, stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from release.folder import open_release
from runtime.ort.load import give_back, load_model
from runtime.ort.reclaim import Packed, drop_file_pages
from runtime.ort.selftest import first_logits
from runtime.ort.session import OrtSession, OrtStepModel
from tests.fakes.steps import FakeSteps

SIZE = 10_000


def made(seed: int = 0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    table = draw.integers(1, 255, (100, 100), np.uint8)
    return {
        "a.q": draw.integers(1, 255, (10, SIZE // 10), np.uint8),
        "b.q": draw.integers(1, 255, (SIZE,), np.uint8),
        "a.s": draw.random(SIZE, np.float32),
        "small.q": np.ones(16, np.uint8),
        "head.q": table,
        "table.q": table.reshape(-1),
    }


def test_codes_are_moved_whole_dropped_and_put_back() -> None:
    arrays, expected = made(), made()
    packed = Packed(arrays)
    assert all((arrays[name] == expected[name]).all() for name in expected)
    assert 2 * SIZE <= packed.bytes < 2 * SIZE + 3 * 4096
    packed.drop()
    assert not arrays["a.q"].any() and not arrays["b.q"].any()
    for kept in ("a.s", "small.q", "head.q", "table.q"):
        assert (arrays[kept] == expected[kept]).all(), f"{kept} must stay"
    packed.put_back(made())
    assert all((arrays[name] == expected[name]).all() for name in expected)


def test_without_codes_in_memory_there_is_nothing_to_drop() -> None:
    packed = Packed({"a.s": np.ones(SIZE, np.float32)})
    packed.drop()
    assert packed.bytes == 0


def test_dropped_pages_of_files_are_read_again(tiny_release: Path) -> None:
    arrays = open_release(tiny_release).initializers(4)
    before = {name: array.copy() for name, array in arrays.items()}
    drop_file_pages(arrays)
    assert all((arrays[name] == before[name]).all() for name in before)


class Reading(FakeSteps):
    """Its logits are those weights that it was fed with."""

    weights: np.ndarray

    def _logits(self, rows: object) -> np.ndarray:
        return np.asarray([self.weights], np.float32)


def test_codes_that_are_read_are_put_back() -> None:
    arrays = made()
    packed = Packed(arrays)
    steps = Reading()
    steps.weights = arrays["b.q"]
    give_back(lambda: first_logits(steps), packed, made)
    assert (arrays["b.q"] == made()["b.q"]).all()


def test_codes_that_are_not_read_go() -> None:
    arrays = made()
    give_back(lambda: first_logits(FakeSteps()), Packed(arrays), made)
    assert not arrays["b.q"].any()


@pytest.mark.parametrize("bits", [4, 8])
def test_a_loaded_model_computes_what_one_does_that_keeps_everything(tiny_release: Path, bits: int) -> None:
    release = open_release(tiny_release)
    keeping = OrtStepModel(OrtSession(release.graph(bits), release.initializers(bits)), 2, 64, 16)
    loaded = load_model(release, bits, slots=2, capacity=64, prefill_chunk=16).steps
    for prompt in ([3], [1, 2, 3, 4, 5, 6, 7], list(range(16))):
        for row in (0, 1):
            expected = keeping.prefill(row, prompt, 0).copy()
            assert (loaded.prefill(row, prompt, 0) == expected).all()
        lengths = [len(prompt)] * 2
        expected = keeping.decode([5, 6], lengths).copy()
        assert (loaded.decode([5, 6], lengths) == expected).all()
