"""Probabilities of a row of logits."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from runtime.ort.softmax import GRAPH, Softmax


def test_the_graph_is_one_softmax() -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"], axis=-1)], "softmax", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8, producer_name="")
    assert model.SerializeToString() == GRAPH


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
