"""MiniLM and real intents: what nesting costs a classifier in accuracy. Needs the data sets (WEIR_DATA)."""

from __future__ import annotations

import csv
import gzip
import json
import os
import random
from pathlib import Path

import pytest

from quantize.encoder.build import build_classifier, rounding
from quantize.encoder.subjects import EncoderClassifiers
from quantize.evaluate import evaluate_release
from quantize.sources.resolve import resolve
from quantize.verdicts import read_csv
from release.folder import open_release

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(600)]

INTENTS, FITTED, JUDGED = 20, 800, 300


@pytest.fixture
def intents(tmp_path: Path) -> tuple[Path, Path]:
    """CSVs of texts to fit on and to judge on, of the first intents of CLINC150 by name."""
    named = os.environ.get("WEIR_DATA", "")
    if not named:
        pytest.skip("WEIR_DATA is not set: give the folder of the data sets to measure a classifier on CLINC150")
    with gzip.open(Path(named) / "intent" / "clinc150.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    chosen = set(sorted({row["label"] for row in rows} - {"oos"})[:INTENTS])
    paths = []
    for split, count in (("train", FITTED), ("test", JUDGED)):
        found = [(row["text"], row["label"]) for row in rows if row["split"] == split and row["label"] in chosen]
        random.Random(0).shuffle(found)
        paths.append(tmp_path / f"{split}.csv")
        with paths[-1].open("w", encoding="utf-8", newline="") as handle:
            writer = csv.writer(handle)
            writer.writerow(["text", "label"])
            writer.writerows(found[:count])
    return paths[0], paths[1]


def test_accuracy_survives_both_precisions(intents: tuple[Path, Path], tmp_path: Path) -> None:
    fitted, judged = intents
    source = resolve("minilm-l6").folder
    build_classifier(source, tmp_path / "release", name="minilm-intents", csv=fitted, nester=rounding)
    release = open_release(tmp_path / "release")
    _, found = evaluate_release(
        release.path, source, items=read_csv(judged), classifiers=EncoderClassifiers(release), threads=1
    )
    assert found.source_accuracy is not None
    assert found.source_accuracy > 0.9
    for bits, most in ((8, 0.01), (4, 0.03)):
        accuracy = found.widths[bits].accuracy
        assert accuracy is not None
        assert accuracy > found.source_accuracy - most
    assert found.widths[8].kl < 0.002
    assert found.widths[4].kl < 0.1
