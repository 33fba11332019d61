"""`weir size` against the real SmolLM2: memory within a fifth of what a process takes, sizes before and after."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from quantize.sizes import expected_manifest
from quantize.sources.catalogue import shipped
from release.listing import read_manifest
from runtime.ort.steady import ENGINE_BYTES, engine_bytes

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(300)]

SLOTS, CONTEXT = 2, 256
# An engine's imports, sessions with every slot full, and what the process takes then.
_TAKEN = f"""
import sys
from pathlib import Path
import psutil
from edge.engine import main
from release.folder import open_release
from runtime.ort.load import load_model
from runtime.tokenizer import Tokenizer
folder = Path(sys.argv[1])
kept = [Tokenizer.load(folder)]
for bits in map(int, sys.argv[2].split(",")):
    steps = load_model(open_release(folder, verify=False), bits, slots={SLOTS}, capacity={CONTEXT}).steps
    for row in range({SLOTS}):
        for start in range(0, {CONTEXT}, 128):
            steps.prefill(row, list(range(5, 133)), start)
    kept.append(steps)
print(psutil.Process().memory_info().rss)
"""


@pytest.mark.parametrize("precisions", [(4,), (8,), (4, 8)])
def test_the_engine_takes_what_was_said(smollm2_release: Path, precisions: tuple[int, ...]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _TAKEN, str(smollm2_release), ",".join(map(str, precisions))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=True)
    expected = engine_bytes(read_manifest(smollm2_release), precisions, slots=SLOTS, context=CONTEXT)
    assert int(done.stdout) == pytest.approx(expected, rel=0.2)
    assert expected > ENGINE_BYTES


def test_the_catalogue_knows_it_as_it_is_built(smollm2_release: Path) -> None:
    entry = shipped().find("smollm2-135m-instruct")
    assert entry is not None
    built = read_manifest(smollm2_release)
    expected = expected_manifest(entry.name, entry.config, entry.tokenizer_bytes)
    assert expected.architecture == built.architecture
    sizes = [sum(file.bytes for file in manifest.files) for manifest in (expected, built)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.1)


def test_measured_speed_is_of_the_releases_own_steps(smollm2_release: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "weir.cli.main",
        "size",
        str(smollm2_release),
        "--measure",
        "--threads",
        "1",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    document = json.loads(done.stdout)
    assert document["speed_from"] == "the release itself"
    assert set(document["per_second"]) == {"4", "8"}
    assert min(document["per_second"].values()) > 1
    assert document["fits"] == {"4": True, "8": True, "both": True}
