"""Probabilities of a row of logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from release.folder import open_release
from runtime.ort.load import load_model
from runtime.ort.sampling import Sampler, SamplingParams
from runtime.ort.softmax import APPENDED, GRAPH, Softmax


def test_the_graph_is_one_softmax() -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"], axis=-1)], "softmax", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8, producer_name="")
    assert model.SerializeToString() == GRAPH


def test_what_a_decoders_graph_is_followed_by_is_one_softmax_more() -> None:
    more = ModelProto()
    more.graph.node.append(helper.make_node("Softmax", ["logits"], ["probabilities"], axis=-1))
    more.graph.output.append(helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, None))
    assert more.SerializeToString() == APPENDED


@pytest.mark.parametrize("precision", [4, 8])
def test_a_model_tells_the_very_probabilities_of_its_logits(tiny_release: Path, precision: int) -> None:
    steps = load_model(open_release(tiny_release), precision, slots=3, capacity=64, prefill_chunk=16).steps
    softmax, samplers = Softmax(steps.vocab_size), [Sampler(SamplingParams(), steps.vocab_size) for _ in range(2)]
    for row in range(3):
        logits = steps.prefill(row, [3 + row, 1, 4], 0)
        assert np.array_equal(steps.probabilities[0], softmax(logits))
    for at in range(3, 8):
        logits = steps.decode([5, 6, 7], [at, at, at])
        for row in range(3):
            assert np.array_equal(steps.probabilities[row], softmax(logits[row]))
            told = samplers[0].choose(logits[row], top=3, probabilities=steps.probabilities[row])
            assert told == samplers[1].choose(logits[row], top=3)
    scored = steps.score(0, [1, 2, 3], 3).copy()
    steps.prefill(0, [1], 3)
    steps.prefill(0, [2], 4)
    np.testing.assert_allclose(steps.prefill(0, [3], 5), scored[2], atol=0.3)


@pytest.mark.parametrize("size", [1, 2, 1000, 49_152])
def test_probabilities_are_those_of_the_definition(size: int) -> None:
    logits = (np.random.default_rng(size).standard_normal(size) * 8 + 40).astype(np.float32)
    weights = np.exp(logits.astype(np.float64) - logits.max())
    np.testing.assert_allclose(Softmax(size)(logits), weights / weights.sum(), rtol=2e-5, atol=1e-9)


def test_rows_of_one_array_are_told_apart_and_what_is_written_into_them_is_seen() -> None:
    rows, softmax = np.zeros((3, 4), np.float32), Softmax(4)
    for turn in range(2):
        for row in range(3):
            rows[row] = -50.0
            rows[row, (row + turn) % 4] = 0.0
            assert softmax(rows[row]).argmax() == (row + turn) % 4


def test_logits_at_ever_other_addresses_take_no_more_memory() -> None:
    softmax = Softmax(2)
    kept = [np.array([index, 0.0], np.float32) for index in range(1000)]
    for index, logits in enumerate(kept):
        assert softmax(logits)[0] == pytest.approx(1 / (1 + np.exp(-float(index))), rel=1e-5)
    assert len(softmax._bindings) <= 256


def test_what_lies_scattered_is_gathered_and_what_is_of_another_length_refused() -> None:
    both = np.array([[0.0, 9.0], [0.0, 9.0], [5.0, 9.0]], np.float32)
    assert Softmax(3)(both[:, 0]).argmax() == 2
    with pytest.raises(ValueError, match="shape"):
        Softmax(4)(both[:, 0])
