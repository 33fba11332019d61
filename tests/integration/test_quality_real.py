"""A real model's release is as near to its source as its widths allow, and passes its own self-tests."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from quantize.evaluation_text import read_text, windows
from quantize.measure import CHUNK, agreement, walk
from quantize.selftest import record_self_tests
from quantize.sources.resolve import resolve
from quantize.subjects import SourceModelInFloat, served
from release.folder import open_release
from runtime.ort.load import load_model
from tests.releases import SMOLLM2_FOLDER

pytestmark = pytest.mark.real_model

POSITIONS = 256


def test_smollm2_stays_near_its_source(smollm2_release: Path) -> None:
    """Rounded to nearest, on few positions: enough to see a broken width, not to quote."""
    source = Path(os.environ.get(SMOLLM2_FOLDER, "") or resolve("smollm2-135m-instruct").folder)
    release = open_release(smollm2_release, verify=False)
    stretch = windows(read_text(), source, context=POSITIONS, least=POSITIONS)
    subjects = {str(bits): served(release, bits, capacity=POSITIONS, chunk=CHUNK, threads=1) for bits in (4, 8)}
    first, found = walk(SourceModelInFloat(source, 1), subjects, stretch, told=lambda _: None)
    four, eight = found["4"], found["8"]
    assert 10 < first.perplexity < 80
    assert eight.kl < 0.012
    assert eight.kl < four.kl / 10
    assert agreement(first, eight) > 0.9
    assert 0.5 < agreement(first, four) < agreement(first, eight)


def test_its_self_tests_hold_where_they_were_recorded(smollm2_release: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(smollm2_release, tmp_path / "release")
    record_self_tests(folder)
    for bits in (4, 8):
        load_model(open_release(folder, verify=False), bits, capacity=64)
