"""A classifier's release computes what its encoder and head compute in float, whatever texts share a batch."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantize.architecture import BLOCK_SIZE
from quantize.encoder.architecture import read_encoder
from quantize.encoder.build import HELD_OUT_ACCURACY, build_classifier, compensating, rounding
from quantize.encoder.floats import FloatEncoder
from quantize.encoder.head import fit, split
from quantize.encoder.subjects import EncoderClassifiers
from quantize.errors import QuantizeError, UnsupportedArchitecture
from quantize.evaluate import evaluate_release
from quantize.levels import FLOAT_INPUTS, at_level
from quantize.verdicts import LabelledText, read_csv
from release.errors import ReleaseError
from release.folder import Release, open_release
from release.planes import dequantize, unpack4, unpackz
from runtime.ort.classify import ClassifierModel, batches, shortened
from runtime.ort.load import load_model
from runtime.ort.session import GraphError
from runtime.tokenizer import Tokenizer
from tests import releases
from tests.models import tiny_encoder_folder

_WORDS = {
    "parcel": ["where", "is", "my", "parcel", "it", "has", "not", "arrived", "since", "monday"],
    "refund": ["please", "send", "the", "money", "back", "to", "my", "card", "and", "cancel", "the", "order"],
    "room": ["how", "many", "nights", "in", "the", "city", "on", "which", "date", "with", "breakfast"],
}


def write_items(path: Path, count: int = 90, seed: int = 1) -> Path:
    """Texts of 3 to 30 words, each of its label's words."""
    chosen = random.Random(seed)
    with path.open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(["label", "text"])
        for index in range(count):
            label = sorted(_WORDS)[index % len(_WORDS)]
            writer.writerow([label, " ".join(chosen.choices(_WORDS[label], k=chosen.randint(3, 30)))])
    return path


@pytest.fixture(scope="module", params=["Bert", "Roberta"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The encoder's folder, the release's, and the labelled texts."""
    folder = tmp_path_factory.mktemp(request.param)
    source, items = tiny_encoder_folder(folder / "hf", request.param), write_items(folder / "items.csv")
    build_classifier(source, folder / "release", name="tiny", csv=items, nester=rounding)
    return source, folder / "release", items


def texts_of(path: Path) -> list[str]:
    return [item.text for item in read_csv(path)]


def test_a_release_gives_the_float_models_logits(built: tuple[Path, Path, Path]) -> None:
    source, folder, items = built
    release = open_release(folder)
    texts = [*texts_of(items)[:20], "a", "parcel " * 200]  # one longer than the model takes
    reference = EncoderClassifiers(release).source(source, 1)
    expected = np.array([reference.logits(text) for text in texts])
    distances = {}
    for bits in (4, 8):
        found = ClassifierModel(release, bits).logits(texts)
        distances[bits] = float(np.sqrt(np.square(found - expected).mean() / expected.var()))
    assert distances[8] < 0.06
    assert distances[8] < distances[4] < 0.5


@pytest.mark.parametrize("bits", [4, 8])
def test_a_graph_is_exact_for_the_weights_its_planes_say(built: tuple[Path, Path, Path], bits: int) -> None:
    """With float inputs, and with transformers given the very same weights, nothing is left of the difference."""
    source, folder, items = built
    release = open_release(folder)
    reference = FloatEncoder(source, 1)
    put_weights(reference, release, bits)
    model = ClassifierModel(release, bits, graph=at_level(release.graph(bits), FLOAT_INPUTS))
    tokenizer, arrays = Tokenizer.load(folder), release.initializers(bits)
    texts = [*texts_of(items)[:20], "parcel " * 200]
    rows = [shortened(tokenizer.encode(text), release.manifest.architecture.context_length) for text in texts]
    expected = reference.features(rows) @ arrays["classifier.weight"].T + arrays["classifier.bias"]
    assert np.abs(model.logits(texts) - expected).max() < 2e-3 * expected.std()


def put_weights(encoder: FloatEncoder, release: Release, bits: int) -> None:
    """Gives the float encoder the weights that a session of that precision multiplies by."""
    import torch

    arrays = release.initializers(bits)
    width = release.manifest.architecture.hidden_size // BLOCK_SIZE

    def put(module: Any, values: np.ndarray) -> None:
        module.weight.data.copy_(torch.from_numpy(np.ascontiguousarray(values)))

    codes = arrays["embeddings.words.q"]
    scales, zeros = arrays["embeddings.words.s"], arrays["embeddings.words.z"]
    blocked = (codes.reshape(len(codes), width, BLOCK_SIZE), scales.reshape(-1, width), zeros.reshape(-1, width))
    words = dequantize(*blocked)
    put(encoder.model.embeddings.word_embeddings, words.reshape(codes.shape))
    for matrix in release.manifest.matrices:
        codes, zeros = arrays[f"{matrix.name}.q"], arrays[f"{matrix.name}.z"]
        if bits == 4:
            codes, zeros = unpack4(codes), unpackz(zeros, matrix.columns // BLOCK_SIZE)
        values = dequantize(codes, arrays[f"{matrix.name}.s"], zeros).reshape(matrix.rows, matrix.columns)
        _, index, part = matrix.name.split(".")
        layer = encoder.model.encoder.layer[int(index)]
        names = {
            "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
            "attention_out": ("attention.output.dense",),
            "up": ("intermediate.dense",),
            "down": ("output.dense",),
        }[part]
        for name, rows in zip(names, np.split(values, len(names)), strict=True):
            put(layer.get_submodule(name), rows)


def test_what_a_text_gets_does_not_depend_on_its_batch(built: tuple[Path, Path, Path]) -> None:
    _, folder, items = built
    model, texts = ClassifierModel(open_release(folder), 8), texts_of(items)
    together = model.scores(texts)
    alone = np.concatenate([model.scores([text]) for text in texts])
    assert np.abs(together - alone).max() < 1e-4
    assert np.allclose(together.sum(axis=1), 1, atol=1e-5)
    assert model.scores([]).shape == (0, 3)


def test_a_manifest_says_what_the_head_was_fitted_on(built: tuple[Path, Path, Path]) -> None:
    _, folder, items = built
    manifest = open_release(folder).manifest
    assert (manifest.task, manifest.labels) == ("classify", ("parcel", "refund", "room"))
    held_out = next(figure for figure in manifest.quality if figure.name == HELD_OUT_ACCURACY)
    assert (held_out.items, held_out.value) == (len(split(read_csv(items))[1]), 1.0) == (9, 1.0)
    settings = json.loads((folder / "tokenizer.json").read_text())
    assert settings["padding"] is None is settings["truncation"]
    assert len(manifest.matrices) == 4 * 2


def test_quality_is_measured_as_for_any_release(built: tuple[Path, Path, Path]) -> None:
    source, folder, items = built
    _, held_out = split(read_csv(items))
    manifest, evaluation = evaluate_release(
        folder, source, items=held_out, classifiers=EncoderClassifiers(open_release(folder)), threads=1
    )
    assert evaluation.source_accuracy == 1.0
    assert evaluation.widths[8].accuracy == evaluation.widths[8].top1 == 1.0
    assert evaluation.widths[8].kl < evaluation.widths[4].kl
    assert open_release(folder).id == manifest.id


def test_compensation_knows_the_texts_and_helps(tmp_path: Path) -> None:
    source, items = tiny_encoder_folder(tmp_path / "hf"), write_items(tmp_path / "items.csv")
    gaps = {}
    for name, nester in (("plain", rounding), ("compensated", compensating)):
        manifest = build_classifier(source, tmp_path / name, name="tiny", csv=items, nester=nester)
        release = open_release(tmp_path / name)
        reference, texts = EncoderClassifiers(release).source(source, 1), texts_of(items)
        expected = np.array([reference.logits(text) for text in texts])
        gaps[name] = float(np.square(ClassifierModel(release, 4).logits(texts) - expected).mean())
    assert gaps["compensated"] < 0.6 * gaps["plain"]
    assert manifest.recipe.method == "gptq"
    assert len(manifest.recipe.text_digest) == 64


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model_type": "deberta-v2"}, "'deberta-v2'; classifiers are built on bert"),
        ({"is_decoder": True}, "as a decoder"),
        ({"position_embedding_type": "relative_key"}, "'relative_key'"),
        ({"hidden_act": "relu"}, "hidden_act 'relu'"),
        ({"hidden_size": 72}, "hidden_size is 72"),
        ({"num_attention_heads": 5}, "not a multiple of its 5 heads"),
        ({"quantization_config": {}}, None),
        ({"quantization_config": {"quant_method": "x"}}, "quantized already"),
    ],
)
def test_what_no_classifier_is_built_on_is_refused(tmp_path: Path, changes: dict[str, Any], told: str | None) -> None:
    config = {"model_type": "bert", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
              "num_attention_heads": 4, "vocab_size": 384, "max_position_embeddings": 64}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "tokenizer.json").write_text("{}")
    if told is None:
        read_encoder(tmp_path)
        return
    with pytest.raises(UnsupportedArchitecture, match=told):
        read_encoder(tmp_path)


def test_a_layout_that_is_not_berts_leaves_nothing(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source, items = tiny_encoder_folder(tmp_path / "hf"), write_items(tmp_path / "items.csv")
    weights = load_file(source / "model.safetensors")
    del weights["encoder.layer.1.output.dense.bias"]
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UnsupportedArchitecture, match=r"no weight encoder\.layer\.1\.output\.dense\.bias"):
        build_classifier(source, tmp_path / "out", name="tiny", csv=items, nester=rounding)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "items.csv"]


@pytest.mark.parametrize(
    ("content", "told"),
    [("text,label\na,one\nb,one\n", "have 1 labels"), ("words\na\n", "columns text and label")],
)
def test_texts_no_head_can_be_fitted_on_are_refused_first(tmp_path: Path, content: str, told: str) -> None:
    source = tiny_encoder_folder(tmp_path / "hf")
    (tmp_path / "items.csv").write_text(content)
    with pytest.raises(QuantizeError, match=told):
        build_classifier(source, tmp_path / "out", name="tiny", csv=tmp_path / "items.csv")
    assert not (tmp_path / "out").exists()


def test_two_labels_make_two_logits_that_say_the_same_as_one() -> None:
    random_numbers = np.random.default_rng(0)
    features = random_numbers.normal(size=(60, 8)).astype(np.float32)
    items = [LabelledText("t", "yes" if row[0] > 0 else "no") for row in features]
    head = fit(features, items)
    logits = head.logits(features)
    assert head.labels == ("no", "yes")
    assert (
        np.mean([head.labels[index] == item.label for index, item in zip(logits.argmax(1), items, strict=True)]) > 0.9
    )


def test_every_label_keeps_texts_to_be_fitted_on() -> None:
    items = [
        LabelledText(str(index), label) for label, count in (("a", 1), ("b", 2), ("c", 40)) for index in range(count)
    ]
    fitted, held_out = split(items)
    assert {item.label for item in fitted} == {"a", "b", "c"}
    assert [sum(item.label == label for item in held_out) for label in "abc"] == [0, 1, 4]
    assert split(items) == (fitted, held_out)


@pytest.mark.parametrize("lengths", [[], [5], [1, 9, 2, 8, 100, 3], [4] * 100, [600] * 20])
def test_batches_hold_every_text_once_and_little_padding(lengths: Sequence[int]) -> None:
    found = list(batches(lengths))
    assert sorted(index for batch in found for index in batch) == list(range(len(lengths)))
    for batch in found:
        widths = [lengths[index] for index in batch]
        assert len(batch) <= 32
        assert max(widths) - min(widths) < 8
        assert len(batch) == 1 or max(widths) * len(batch) <= 4096


def test_releases_are_not_taken_for_one_another(built: tuple[Path, Path, Path]) -> None:
    with pytest.raises(GraphError, match="made to generate, not to classify"):
        ClassifierModel(open_release(releases.tiny()), 8)
    with pytest.raises((GraphError, ReleaseError)):
        load_model(open_release(built[1]), 8)
