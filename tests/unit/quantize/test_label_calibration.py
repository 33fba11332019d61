"""A classifier's confidence: fitted on texts its head was not fitted on, and used by a node as it was fitted."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import numpy as np
import pytest

from edge.calibration import Calibrated
from edge.classifier.labels import scored
from quantize.encoder.build import build_classifier, rounding
from quantize.encoder.head import split
from quantize.encoder.subjects import EncoderClassifiers
from quantize.errors import QuantizeError
from quantize.evaluate import evaluate_release
from quantize.label_calibration import AGREEMENT, CORRECT, calibrate_classifier, signals_of
from quantize.verdicts import LabelledText, of_many, read_csv
from release.folder import open_release
from release.listing import read_manifest
from release.manifest import Labelling
from router.label_confidence import LABEL_FEATURES, label_features, of_one
from router.label_confidence import of_many as of_many_labels
from runtime.cpu import cpu_class
from runtime.ort.classify import ClassifierModel
from tests.integration.classifier_process import WORDS, write_texts
from tests.models import tiny_encoder_folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[LabelledText, ...]]:
    """A release and the texts that were held out of its fit, every fifth of them with another label than it seems."""
    folder = tmp_path_factory.mktemp("calibrated")
    source, texts = tiny_encoder_folder(folder / "hf"), write_texts(folder / "items.csv", 300)
    build_classifier(source, folder / "release", name="tiny", csv=texts, nester=rounding)
    held = split(read_csv(texts))[1]
    labels = sorted(WORDS)
    wrong = [
        LabelledText(item.text, labels[(labels.index(item.label) + (index % 5 == 0)) % 3])
        for index, item in enumerate(held)
    ]
    return folder / "release", tuple(wrong)


def test_a_release_is_calibrated_against_labels_or_another_release(
    built: tuple[Path, tuple[LabelledText, ...]], tmp_path: Path
) -> None:
    folder, items = built
    manifest = calibrate_classifier(folder, items, max_disagreement=0.1)
    assert manifest == read_manifest(folder)
    assert {(c.precision, c.commit_rule, c.target) for c in manifest.calibrations} == {
        (4, "end", "labels"), (8, "end", "labels"),
    }  # fmt: skip
    assert all(c.features == LABEL_FEATURES and c.n == len(items) for c in manifest.calibrations)
    assert {figure.name for figure in manifest.quality} >= {CORRECT}
    again = calibrate_classifier(folder, items, cloud=folder, max_disagreement=0.1)
    assert {c.target for c in again.calibrations} == {"cloud"}
    assert next(c for c in again.calibrations if c.precision == 8).n_agree == len(items)  # with itself
    assert again.cloud.name.startswith("tiny@")
    names = {figure.name for figure in again.quality}
    assert AGREEMENT in names and CORRECT not in names


def test_a_node_finds_the_calibrator_and_is_told_the_same(built: tuple[Path, tuple[LabelledText, ...]]) -> None:
    folder, items = built
    manifest = calibrate_classifier(folder, items, max_disagreement=0.1)
    calibrated = Calibrated(cpu_class(), [manifest])
    for bits in (4, 8):
        calibrator = calibrated.in_force(manifest.id, bits, None).end.calibrator
        assert calibrator is not None
        row = ClassifierModel(open_release(folder), bits).logits([items[0].text])[0]
        scores, _ = scored(manifest.labels, row.tolist(), manifest.labelling)
        theirs = calibrator.of(label_features(signals_of(row, manifest.labelling, 12)))
        ours = calibrator.of(label_features(of_one([score.score for score in scores], 12)))
        assert ours == pytest.approx(theirs, abs=1e-6)
        assert 0 <= ours <= 1
        assert calibrated.entry(manifest.id, bits) is not None


def test_too_few_texts_are_refused(built: tuple[Path, tuple[LabelledText, ...]]) -> None:
    folder, items = built
    with pytest.raises(QuantizeError, match="too few"):
        calibrate_classifier(folder, items[:3], max_disagreement=0.1)


def write_many(path: Path, count: int = 160) -> Path:
    """Texts of one or two subjects, or of none."""
    chosen = random.Random(2)
    with path.open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(["text", "labels"])
        for index in range(count):
            held = [label for place, label in enumerate(sorted(WORDS)) if (index >> place) & 1]
            words = [word for label in held for word in chosen.choices(WORDS[label], k=8)] or ["nothing", "at", "all"]
            writer.writerow([" ".join(words), "|".join(held)])
    return path


def test_labels_that_do_not_exclude_each_other_are_fitted_measured_and_calibrated(tmp_path: Path) -> None:
    source, texts = tiny_encoder_folder(tmp_path / "hf"), write_many(tmp_path / "many.csv")
    manifest = build_classifier(source, tmp_path / "release", name="many", csv=texts, nester=rounding)
    assert manifest.labelling == Labelling(multi_label=True, truncates=True)
    assert manifest.labels == ("parcel", "refund", "room")
    held = split(read_csv(texts))[1]
    release = open_release(tmp_path / "release")
    _, found = evaluate_release(release.path, source, items=held, classifiers=EncoderClassifiers(release), threads=1)
    assert found.source_accuracy is not None and found.source_accuracy > 0.5
    assert found.widths[8].top1 > 0.9
    assert found.widths[8].kl < 0.1
    items = read_csv(texts)[:60]
    calibrated = calibrate_classifier(tmp_path / "release", items, max_disagreement=0.1)
    assert all(c.n_agree > 20 for c in calibrated.calibrations)
    with pytest.raises(QuantizeError, match="labels column"):
        evaluate_release(
            release.path,
            source,
            items=[LabelledText("a", "parcel")],
            classifiers=EncoderClassifiers(open_release(release.path)),
            threads=1,
        )


def test_what_tells_of_several_labels_is_the_least_certain_decision() -> None:
    signals = of_many_labels([0.9, 0.02, 0.55], [0.5, 0.5, 0.5], 7)
    assert signals.answer_logprob == pytest.approx(np.log(0.55))
    assert signals.margin == pytest.approx(np.log(0.55 / 0.45))
    assert signals.tokens == 7
    assert of_many_labels([], [], 0).margin > 0
    alone = of_one([1.0], 3)
    assert alone.answer_logprob == 0 and alone.entropy == pytest.approx(0)


def test_a_csv_says_whether_its_labels_exclude_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,labels\nhello, b | a |\nbye,\n")
    assert read_csv(tmp_path / "a.csv") == (of_many("hello", ["a", "b"]), of_many("bye", []))
    assert read_csv(tmp_path / "a.csv")[0].label == "a|b"
    (tmp_path / "b.csv").write_text("text,label\nhello,\n")
    with pytest.raises(QuantizeError, match="line 2"):
        read_csv(tmp_path / "b.csv")
