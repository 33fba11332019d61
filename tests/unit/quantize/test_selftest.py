"""What is recorded passes where it was recorded, in whatever pieces, and fails on other weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from quantize.classifier.build import build_ready_made
from quantize.nest import RoundToNearest
from quantize.selftest import record_self_tests
from release.folder import open_release
from release.manifest import Manifest
from runtime.cpu import cpu_class
from runtime.ort.classify import ClassifierModel
from runtime.ort.load import load_model
from runtime.ort.selftest import try_out
from runtime.ort.session import GraphError
from runtime.tokenizer import Tokenizer
from tests.models import tiny_onnx_classifier


@pytest.fixture(scope="module")
def recorded(tiny_release: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    folder = shutil.copytree(tiny_release, tmp_path_factory.mktemp("tried") / "release")
    return folder, record_self_tests(folder)


def test_every_precision_gets_a_test_that_it_passes(recorded: tuple[Path, Manifest]) -> None:
    folder, manifest = recorded
    assert open_release(folder).manifest == manifest
    assert [test.precision for test in manifest.self_tests] == [4, 8]
    for test in manifest.self_tests:
        assert test.cpu_class == cpu_class()
        assert len(test.token_ids) == 8
        assert list(test.logits) == sorted(test.logits, reverse=True)
        for chunk in (128, len(test.prompt_ids) - 1, 2):
            load_model(open_release(folder), test.precision, capacity=64, prefill_chunk=chunk)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_other_weights_fail_it(recorded: tuple[Path, Manifest], elsewhere: bool) -> None:
    """The 4-bit weights are what an 8-bit session without its residual would multiply by."""
    folder, manifest = recorded
    (eight,) = [test for test in manifest.self_tests if test.precision == 8]
    steps = load_model(open_release(folder), 4, capacity=64).steps
    with pytest.raises(GraphError, match="failed their self-test"):
        try_out(steps, 8, [eight], "another" if elsewhere else eight.cpu_class)


def test_tolerances_are_measured_and_wider_elsewhere(recorded: tuple[Path, Manifest]) -> None:
    for test in recorded[1].self_tests:
        assert 0.05 <= test.tolerance <= test.tolerance_elsewhere / 2
        assert test.tolerance_elsewhere < np.ptp(test.logits) * 10


def test_a_classifier_gets_one_over_its_labels(tmp_path: Path) -> None:
    build_ready_made(tiny_onnx_classifier(tmp_path / "own"), tmp_path / "release", name="tiny", nester=RoundToNearest())
    manifest = record_self_tests(tmp_path / "release")
    release = open_release(tmp_path / "release")
    assert release.manifest == manifest
    text = Tokenizer.load(release.path).decode(manifest.self_tests[0].prompt_ids)
    for test in manifest.self_tests:
        assert sorted(test.token_ids) == [0, 1, 2]
        logits = ClassifierModel(release, test.precision).logits([text])[0]
        assert logits[list(test.token_ids)] == pytest.approx(test.logits, abs=test.tolerance)
