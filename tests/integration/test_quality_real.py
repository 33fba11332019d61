"""A real model's release is as near to its source as its widths allow, and passes its own self-tests."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from quantize.evaluate import evaluate_release
from quantize.selftest import record_self_tests
from quantize.sources.resolve import resolve
from release.folder import open_release
from runtime.ort.load import load_model
from tests.releases import SMOLLM2_FOLDER

pytestmark = pytest.mark.real_model


def test_smollm2_stays_near_its_source(smollm2_release: Path, tmp_path: Path) -> None:
    """Rounded to nearest, on 512 positions: enough to see a broken width, not to quote."""
    folder = shutil.copytree(smollm2_release, tmp_path / "release")
    source = Path(os.environ.get(SMOLLM2_FOLDER, "") or resolve("smollm2-135m-instruct").folder)
    record_self_tests(folder)
    _, found = evaluate_release(folder, source, least=512)
    four, eight = found.widths[4], found.widths[8]
    assert found.source_perplexity is not None
    assert 10 < found.source_perplexity < 60
    assert eight.kl < 0.012
    assert eight.kl < four.kl / 10
    assert eight.top1 > 0.92
    assert 0.5 < four.top1 < eight.top1
    assert eight.level.kl_float_inputs < eight.level.kl
    assert not eight.level.suspicious
    for bits in (4, 8):
        load_model(open_release(folder, verify=False), bits, capacity=64)
