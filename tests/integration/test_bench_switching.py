"""`weir bench switching` over the tiny release: a real node, both ways to change weights, and its figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.switching.node import NodeFailed, node, second_release
from bench.switching.run import CHANGES, PHASES, UPGRADE
from release.listing import read_manifest


def test_it_measures_every_phase_and_loses_no_request(tiny_release: Path) -> None:
    command = [sys.executable, "-m", "weir.cli.main", "bench", "switching", "--release", str(tiny_release)]
    done = subprocess.run(
        [*command, "--seconds", "2", "--per-minute", "600", "--threads", "1", "--json"],
        capture_output=True,
        timeout=120,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    assert found["failed"] == 0, found["ways"]
    assert found["p99_ratio"] >= found["p99_ratio_same_weights"] > 0
    for way in found["ways"].values():
        assert list(way["phases"]) == list(PHASES)
        assert all(phase["sent"] > 5 and phase["p50_ms"] <= phase["p99_ms"] for phase in way["phases"].values())
    beside, short = found["ways"]["beside"], found["ways"]["short_queue"]
    assert not beside["refused"] and beside["phases"][UPGRADE]["load_ms"] > 0
    # Sessions of so small a release take too little for a budget to tell one from two: a refusal is said.
    assert len(found["pauses_ms"]) + len(short["refused"]) == len(CHANGES)
    assert {"versions", "machine", "plan"} <= set(found)


def test_a_release_that_is_none_is_bad_use(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "weir.cli.main", "bench", "switching", "--release", str(tmp_path / "none")]
    done = subprocess.run([*command, "--json"], capture_output=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "no release folder" in json.loads(done.stdout)["error"]["message"]


async def test_a_node_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NodeFailed, match="the end of its log"):
        async with node(tmp_path / "empty", slots=1, threads=1, memory_budget_bytes=None):
            pass


def test_the_second_release_is_the_same_weights_under_another_id(tiny_release: Path, tmp_path: Path) -> None:
    first, second = read_manifest(tiny_release), read_manifest(second_release(tiny_release, tmp_path / "second"))
    assert first.id != second.id
    assert first.files == second.files
