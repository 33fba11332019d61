"""What is recorded passes where it was recorded, in whatever pieces, and fails on other weights."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from quantize.selftest import record_self_tests
from release.folder import open_release
from release.manifest import Manifest
from runtime.cpu import cpu_class
from runtime.ort.load import load_model
from runtime.ort.selftest import try_out
from runtime.ort.session import GraphError


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


def test_a_release_of_another_task_gets_none(tiny_release: Path, tmp_path: Path) -> None:
    from quantize.sealing import reseal

    folder = shutil.copytree(tiny_release, tmp_path / "release")
    made = reseal(folder, dataclasses.replace(open_release(folder).manifest, task="classify"))
    assert record_self_tests(folder) == made
