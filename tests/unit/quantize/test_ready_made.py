"""A classifier of the user's own becomes a release that answers alike, or is refused for a named reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from quantize.classifier.build import build_ready_made
from quantize.classifier.source import read_ready_made
from quantize.classifier.subjects import ReadyMadeClassifiers
from quantize.errors import UnsupportedArchitecture
from quantize.evaluate import evaluate_release
from quantize.verdicts import LabelledText
from release.folder import open_release
from runtime.ort.classify import ClassifierModel
from tests.models import tiny_onnx_classifier

TEXTS = [
    "where is my parcel",
    "please send the money back to my card",
    "how many nights in the city",
    "a",
    "9 9 9 " * 40,
]


def test_it_answers_like_its_source(tmp_path: Path) -> None:
    source = tiny_onnx_classifier(tmp_path / "source")
    manifest = build_ready_made(source, tmp_path / "release", name="own")
    release = open_release(tmp_path / "release")
    assert sorted(matrix.name for matrix in manifest.matrices) == ["onnx::MatMul_7", "onnx::MatMul_9"]
    reference = ReadyMadeClassifiers(release).source(source, 1)
    expected = np.array([reference.logits(text) for text in TEXTS])
    gaps = {}
    for bits in (4, 8):
        found = ClassifierModel(release, bits).logits(TEXTS)
        gaps[bits] = float(np.abs(found - expected).max() / expected.std())
    assert gaps[8] < 0.06
    assert gaps[8] < gaps[4] < 0.5
    assert (manifest.task, manifest.labels) == ("classify", ("parcel", "refund", "room"))


def test_it_is_measured_like_any_classifier(tmp_path: Path) -> None:
    source = tiny_onnx_classifier(tmp_path / "source")
    build_ready_made(source, tmp_path / "release", name="own")
    classifiers = ReadyMadeClassifiers(open_release(tmp_path / "release"))
    reference = classifiers.source(source, 1)
    items = [LabelledText(text, reference.labels[int(reference.logits(text).argmax())]) for text in TEXTS]
    _, evaluation = evaluate_release(tmp_path / "release", source, items=items, classifiers=classifiers, threads=1)
    assert evaluation.source_accuracy == 1.0
    assert evaluation.widths[8].top1 == 1.0


def test_weights_beside_the_graph_are_found(tmp_path: Path) -> None:
    source = tiny_onnx_classifier(tmp_path / "source")
    model = onnx.load(source / "model.onnx")
    (source / "model.onnx").unlink()
    (source / "onnx").mkdir()
    onnx.save_model(
        model, source / "onnx" / "model.onnx", save_as_external_data=True, location="model.onnx_data", size_threshold=64
    )
    assert [path.name for path in read_ready_made(source).files] == ["model.onnx", "model.onnx_data"]
    assert build_ready_made(source, tmp_path / "release", name="own").matrices


def _renamed(model: Any) -> None:
    model.graph.input[0].name = "pixel_values"


def _fixed(model: Any) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 128


def _short(model: Any) -> None:
    del model.graph.input[1]


def _second(model: Any) -> None:
    model.graph.output.append(helper.make_tensor_value_info("state", TensorProto.FLOAT, ["b", "s", 192]))


def _tokens(model: Any) -> None:
    model.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 3


def _quantized(model: Any) -> None:
    model.graph.node.append(helper.make_node("DequantizeLinear", ["a", "b"], ["c"], name="dq"))


def _branch(model: Any) -> None:
    branch = helper.make_graph([], "then", [], [])
    model.graph.node.append(helper.make_node("If", ["mask"], ["c"], name="if", then_branch=branch, else_branch=branch))


def _half(model: Any) -> None:
    model.graph.initializer.append(helper.make_tensor("half", TensorProto.FLOAT16, [1], [1.0]))


def _more(model: Any) -> None:
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 9


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_renamed, "takes attention_mask, pixel_values; a classifier takes input_ids, attention_mask"),
        (_fixed, "input_ids has a fixed size"),
        (_short, "takes input_ids; a classifier takes"),
        (_second, "gives scores, state, none of which is called logits"),
        (_tokens, "scores must be float32 of two dimensions"),
        (_quantized, "quantized already"),
        (_branch, "branches"),
        (_half, "half precision"),
        (_more, "gives 9 values a text, but 3 labels"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(tmp_path: Path, change: Callable[[Any], None], told: str) -> None:
    source = tiny_onnx_classifier(tmp_path / "source")
    model = onnx.load(source / "model.onnx")
    change(model)
    onnx.save_model(model, source / "model.onnx")
    with pytest.raises(UnsupportedArchitecture, match=told):
        build_ready_made(source, tmp_path / "out", name="own")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"max_position_embeddings": 64}, "names no labels"),
        ({"id2label": {"0": "a", "2": "b"}, "max_position_embeddings": 64}, "without gaps"),
        ({"id2label": {"0": "a", "1": "a", "2": "b"}, "max_position_embeddings": 64}, "each once"),
    ],
)
def test_labels_must_be_plain(tmp_path: Path, config: dict[str, Any], told: str) -> None:
    source = tiny_onnx_classifier(tmp_path / "source")
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedArchitecture, match=told):
        read_ready_made(source)


def test_a_folder_that_is_none_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedArchitecture, match=r"has no model\.onnx"):
        read_ready_made(tmp_path)
    source = tiny_onnx_classifier(tmp_path / "source")
    (source / "model.onnx").write_bytes(b"\xff" * 100)
    with pytest.raises(UnsupportedArchitecture, match="model"):
        read_ready_made(source)
