"""`weir bench edge` over the tiny release without peers: every part runs, and its figures are in the JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.edge.plan import PARTS
from bench.edge.run import KEYS
from bench.edge.side import Side, SideFailed

_PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
_COMMAND = (sys.executable, "-m", "weir.cli.main", "bench", "edge")


def _run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*_COMMAND, *arguments], capture_output=True, timeout=150, check=False, env=environment)


def test_every_part_gives_its_figures(tiny_release: Path, tmp_path: Path) -> None:
    plot = tmp_path / "edge.png"
    done = _run(
        *("--release", str(tiny_release), "--peers", "none", "--quick", "--soak", "2", "--plot", str(plot), "--json")
    )
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    assert set(KEYS) <= set(found)
    # Without peers the comparisons are null; the rest is measured.
    assert found["decode_vs_genai"] is found["decode_vs_llamacpp"] is found["prefill_vs_llamacpp"] is None
    assert found["batch8_vs_genai_batch1"] == {"4": None, "8": None}
    assert set(found["decode_tokens_per_s"]["weir"]) == {"1", "2", "8"}
    assert set(found["overhead_ms"]) == {"grpc", "http"}
    assert set(found["beyond_stages_ms"]) == {"bare", "grpc", "http"}
    assert set(found["streams_tokens_per_s"]) == {"bare", "node", "http"}
    assert found["gap_ratio_long_prompt"] > 0 and found["prefix_ttft_gain"] > 0
    assert found["bandwidth"]["share"]["4"] > 0
    assert found["ttft_under_load"]["failed"] == 0
    soak = found["soak"]
    assert soak["heard_out"] and soak["vanished"]
    assert (soak["failed"], soak["errors"]) == (0, {})
    assert isinstance(soak["resident_mb_per_minute"], float)
    left = [soak[f"left_{what}"] for what in ("active", "queued", "kv_tokens")]
    assert (soak["wrong_or_mixed"], left) == (0, [0, 0, 0]), soak
    assert {"rounds", "versions", "machine", "plan"} <= set(found)
    documented = _PAGE.read_text()
    assert not [name for name in found if f"`{name}`" not in documented and f"`{name}." not in documented]
    assert plot.stat().st_size > 1000


def test_one_part_alone_says_what_was_left_out(tiny_release: Path) -> None:
    done = _run("--release", str(tiny_release), "--quick", "--only", "prefill", "--json")
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    assert found["prefill_ms"]["weir"] > 0
    # No source and no GGUF were named for a release that is not the default one.
    assert "--source" in found["skipped"]["genai 4-bit"] and "--gguf" in found["skipped"]["llamacpp 4-bit"]
    assert {name for name in found["skipped"] if name in PARTS} == set(PARTS) - {"prefill"}


@pytest.mark.parametrize("arguments", [("--only", "nothing"), ("--release", "/nowhere")])
def test_bad_use_is_named(arguments: tuple[str, ...]) -> None:
    done = _run(*arguments, "--json")
    assert done.returncode == 2
    assert arguments[1] in json.loads(done.stdout)["error"]["message"]


def test_a_side_that_fails_says_what_it_was_asked_and_why() -> None:
    with Side("own") as side, pytest.raises(SideFailed, match="asked to load"):
        side.ask("load", release="/nowhere", precision=4, slots=1, capacity=64, threads=1)
