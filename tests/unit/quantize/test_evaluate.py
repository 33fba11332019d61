"""A release's figures are those of its sessions against its source, and end up in its manifest."""

from __future__ import annotations

import dataclasses
import math
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from quantize.errors import QuantizeError
from quantize.evaluate import evaluate_release
from quantize.evaluation import MOST_FLIPS, Evaluation, Level, Width
from quantize.evaluation_text import digest, read_text, windows
from quantize.levels import FLOAT_INPUTS, at_level
from quantize.sealing import reseal
from quantize.subjects import Classifier
from quantize.verdicts import LabelledText, judge, read_csv
from release.folder import Release, open_release
from release.manifest import graph_name
from runtime.ort.load import load_model
from tests.fakes.language import TableClassifier

POSITIONS = 1024


@pytest.fixture
def release(tiny_release: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_release, tmp_path / "release")


@pytest.fixture(scope="module")
def measured(
    tiny_release: Path, tiny_hf_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Evaluation]:
    folder = shutil.copytree(tiny_release, tmp_path_factory.mktemp("measured") / "release")
    _, found = evaluate_release(folder, tiny_hf_folder, least=POSITIONS)
    return folder, found


def log_softmax(logits: np.ndarray) -> np.ndarray:
    values = logits.astype(np.float64)
    return values - np.log(np.exp(values).sum(-1, keepdims=True))


def test_figures_are_those_of_transformers_and_of_the_serving_steps(
    measured: tuple[Path, Evaluation], tiny_hf_folder: Path
) -> None:
    """Recomputed another way: whole windows by transformers, the release in serving's own chunks."""
    import torch
    from transformers import AutoModelForCausalLM

    folder, found = measured
    stretch = windows(read_text(), tiny_hf_folder, context=512, least=POSITIONS)
    assert found.items == POSITIONS == sum(len(window.inputs) for window in stretch)
    model = AutoModelForCausalLM.from_pretrained(tiny_hf_folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        source = [log_softmax(model(torch.tensor([window.inputs])).logits[0].numpy()) for window in stretch]
    surprise = [-rows[np.arange(len(rows)), window.targets] for rows, window in zip(source, stretch, strict=True)]
    assert found.source_perplexity == pytest.approx(math.exp(np.concatenate(surprise).mean()), rel=1e-4)
    first = stretch[0].inputs[:64]
    steps = load_model(open_release(folder), 8, capacity=64).steps
    rows = [log_softmax(steps.prefill(0, first[at : at + 1] if at else first[:1], at)) for at in range(2)]
    gaps = [float((np.exp(p) * (p - q)).sum()) for p, q in zip(source[0], rows, strict=False)]
    assert found.widths[8].kl_by_position[:2] == pytest.approx(gaps, abs=2e-3)


def test_four_bits_lie_further_away_than_eight(measured: tuple[Path, Evaluation]) -> None:
    four, eight = measured[1].widths[4], measured[1].widths[8]
    assert 0 < eight.kl < four.kl / 10
    assert four.top1 < eight.top1 < 1
    assert eight.level.kl_float_inputs < eight.level.kl  # inputs rounded to int8 cost something too
    assert 0 < eight.level.flips < 0.1
    assert eight.level.items == POSITIONS // 2  # one window in four, and there are two


def test_the_manifest_carries_every_figure_with_what_repeats_it(measured: tuple[Path, Evaluation]) -> None:
    folder, found = measured
    manifest = open_release(folder).manifest
    figures = {(figure.name, figure.precision): figure for figure in manifest.quality}
    assert ("relative_weight_error", 4) in figures
    assert figures["perplexity", 32].value == found.source_perplexity
    for bits, width in found.widths.items():
        assert figures["kl", bits].value == width.kl
        assert figures["top1_agreement", bits].value == width.top1
        assert figures["perplexity", bits].value == width.perplexity
        assert figures["kl_float_inputs", bits].items == width.level.items
        assert figures["accuracy_level_flips", bits].value == width.level.flips
    assert figures["kl", 4].data_digest == digest(read_text())
    assert figures["kl", 4].items == POSITIONS
    assert figures["kl", 4].cpu_class == found.cpu_class


def test_measuring_again_replaces_the_figures(release: Path, tiny_hf_folder: Path) -> None:
    first, _ = evaluate_release(release, tiny_hf_folder, least=512)
    again, _ = evaluate_release(release, tiny_hf_folder, least=512)
    other, _ = evaluate_release(release, tiny_hf_folder, least=512, seed=7)
    assert first == again == dataclasses.replace(first)
    assert len(other.quality) == len(first.quality)
    assert other.id != first.id
    assert [path.name for path in release.iterdir() if path.name.startswith("new-")] == []


def test_the_text_that_errors_were_compensated_on_is_refused(release: Path, tiny_hf_folder: Path) -> None:
    before = open_release(release).manifest
    recipe = dataclasses.replace(before.recipe, text_digest=digest(read_text()))
    made = reseal(release, dataclasses.replace(before, recipe=recipe))
    with pytest.raises(QuantizeError, match="were compensated on the evaluation text"):
        evaluate_release(release, tiny_hf_folder)
    assert open_release(release).id == made.id


def test_a_release_with_one_row_of_logits_is_served_but_not_measured(release: Path, tiny_hf_folder: Path) -> None:
    """Releases built before the count of wanted logits was left open go on working."""
    for bits in (4, 8):
        path = release / graph_name(bits)
        model = onnx.load_model_from_string(path.read_bytes())
        for value in (*model.graph.input, *model.graph.output):
            if value.name in ("logits_idx", "logits"):
                value.type.tensor_type.shape.dim[1].dim_value = 1
        path.write_bytes(model.SerializeToString())
    old = Release(release, open_release(release, verify=False).manifest)
    assert load_model(old, 8, capacity=32).steps.prefill(0, [5, 9], 0).shape == (384,)
    with pytest.raises(QuantizeError, match="build it anew"):
        evaluate_release(release, tiny_hf_folder)


def test_another_accuracy_level_is_the_same_graph_with_another_number(tiny_release: Path) -> None:
    graph = open_release(tiny_release).graph(4)
    changed, before = (onnx.load_model_from_string(text) for text in (at_level(graph, FLOAT_INPUTS), graph))
    levels = [
        attribute.i
        for node in changed.graph.node
        if node.op_type == "MatMulNBits"
        for attribute in node.attribute
        if attribute.name == "accuracy_level"
    ]
    assert set(levels) == {FLOAT_INPUTS}
    assert len(levels) == 11
    assert at_level(at_level(graph, FLOAT_INPUTS), 4) == at_level(graph, 4)
    assert [node.name for node in changed.graph.node] == [node.name for node in before.graph.node]


def test_a_model_whose_answers_change_with_rounded_inputs_is_marked() -> None:
    def width(flips: float) -> Width:
        return Width(0.05, 0.9, Level(0.05, 0.01, flips, 1024), np.zeros(1, np.float32))

    found = Evaluation({4: width(MOST_FLIPS / 2), 8: width(MOST_FLIPS * 2)}, 4096, 0, "d", "x86-avx2")
    assert len(found.warnings) == 1
    assert "8 bits" in found.warnings[0]
    assert "16.0%" in found.warnings[0]


ITEMS = (LabelledText("one", "yes"), LabelledText("two", "no"), LabelledText("three", "yes"))
LABELS = ("no", "yes")


def classifier(*logits: tuple[float, float]) -> TableClassifier:
    return TableClassifier(LABELS, dict(zip(("one", "two", "three"), logits, strict=True)))


def test_classifiers_are_judged_by_accuracy_agreement_and_divergence() -> None:
    source, subject = classifier((0, 2), (1, 0), (3, 0)), classifier((0, 1), (0, 1), (3, 0))
    told: list[int] = []
    first, found = judge(source, {"4 bits": subject}, ITEMS, told=told.append)
    assert first.accuracy == pytest.approx(2 / 3)
    assert found["4 bits"].accuracy == pytest.approx(1 / 3)
    p, q = log_softmax(np.array([[0.0, 2], [1, 0], [3, 0]])), log_softmax(np.array([[0.0, 1], [0, 1], [3, 0]]))
    assert found["4 bits"].kl_by_position == pytest.approx((np.exp(p) * (p - q)).sum(-1), rel=1e-5)
    assert len(told) == 3
    with pytest.raises(QuantizeError, match="labels of 4 bits"):
        judge(source, {"4 bits": TableClassifier(("yes", "no"), {})}, ITEMS, told=told.append)


class _Opened:
    """Opens classifiers for the test, whatever release is given."""

    def source(self, folder: Path, threads: int) -> Classifier:
        return classifier((0, 2), (1, 0), (0, 1))

    def release(self, release: Release, precision: int, level: int | None, threads: int) -> Classifier:
        return classifier((0, 2), (1, 0), (0, 1) if precision == 8 else (1, 0))


def test_a_classifier_is_measured_on_its_labelled_texts(release: Path, tiny_hf_folder: Path) -> None:
    reseal(release, dataclasses.replace(open_release(release).manifest, task="classify", labels=LABELS))
    with pytest.raises(QuantizeError, match="--evaluation-csv"):
        evaluate_release(release, tiny_hf_folder)
    manifest, found = evaluate_release(release, tiny_hf_folder, items=ITEMS, classifiers=_Opened())
    assert (found.source_accuracy, found.widths[8].accuracy, found.widths[8].kl) == (1, 1, 0)
    assert found.widths[4].accuracy == found.widths[4].top1 == pytest.approx(2 / 3)
    assert ("accuracy", 32) in {(figure.name, figure.precision) for figure in manifest.quality}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a,b\n1,2\n", "columns text and label"),
        ("text,label\n", "no labelled text"),
        ("text,label\nhello,\n", "line 2"),
    ],
)
def test_a_csv_that_cannot_be_used_says_why(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "items.csv"
    path.write_text(content)
    with pytest.raises(QuantizeError, match=said):
        read_csv(path)


def test_a_csv_is_read_in_its_order(tmp_path: Path) -> None:
    path = tmp_path / "items.csv"
    path.write_text('label,text\nyes,"one, two"\nno,three\n')
    assert read_csv(path) == (LabelledText("one, two", "yes"), LabelledText("three", "no"))
