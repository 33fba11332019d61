"""`weir bench transfer` from end to end on a tiny release: real nodes, sockets, kills and load."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.transfer.traces import DATA_FILE

KEYS = ("first_answer_ratio", "bytes_ratio", "failed", "p99_ratio", "kills", "refetched_chunks_max")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two links that bring the tiny release within a second or two."""
    (tmp_path / DATA_FILE).parent.mkdir(parents=True)
    rows = [
        {"name": f"link-{name}", "t_s": [0.0, 0.5, 1.0], "mbps": [mbps, mbps / 2, mbps]}
        for name, mbps in (("a", 0.4), ("b", 0.2))
    ]
    with gzip.open(tmp_path / DATA_FILE, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return tmp_path


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "WEIR_DATA"}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "weir.cli.main", "bench", "transfer", "--json", *arguments],
        capture_output=True, text=True, timeout=170, check=False, env=_environment(),
    )  # fmt: skip


def test_all_of_it_runs_and_reports(tiny_release: Path, data: Path, tmp_path: Path) -> None:
    picture = tmp_path / "plot.png"
    done = bench("--quick", "--data", str(data), "--release", str(tiny_release), "--plot", str(picture))
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert list(figures)[: len(KEYS)] == list(KEYS)
    assert (figures["failed"], figures["kills"]) == (0, 2)
    assert figures["refetched_chunks_max"] <= 1
    assert figures["bytes_ratio"] < 1.3  # of a tiny release the manifest is a good part
    assert len(figures["real"]["arrivals"]) == 6
    assert all(arrival["first_answer_s"] <= arrival["eight_s"] for arrival in figures["real"]["arrivals"])
    assert figures["virtual"]["traces"] == 2
    assert figures["versions"]["weir"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_without_data_it_is_skipped_and_says_so() -> None:
    done = bench()
    assert done.returncode == 0
    assert "WEIR_DATA" in json.loads(done.stdout)["skipped"]
    assert "skipped" in done.stderr


def test_data_that_is_not_there_is_bad_use(tmp_path: Path) -> None:
    done = bench("--data", str(tmp_path / "nowhere"))
    assert done.returncode == 2
    assert "does not exist" in json.loads(done.stdout)["error"]["message"]
