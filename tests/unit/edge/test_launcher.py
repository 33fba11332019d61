"""What a node's engine is started on: which precision, and why that one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from edge.config import EdgeConfig
from edge.launcher import Launcher
from release.manifest import MANIFEST_NAME, PLANE_LO, Calibration, sealed, write
from tests.fakes.releases import write_release

FITTED = Calibration(
    "c1", 4, "x86-avx2", "end", (0.5,), (1.0,), (2.0,), -1.0, 0.5, ("mean_logprob",), 10, 5, 0.8, 0.1, 0.4
)


def first_bits(folder: Path, *, fitted: bool = True, upstream: str = "127.0.0.1:9", precision: str = "auto") -> int:
    """The precision in the engine process's own argument."""
    release = folder / "release"
    if not release.exists():
        manifest = write_release(release)
        if fitted:
            (release / MANIFEST_NAME).write_text(write(sealed(dataclasses.replace(manifest, calibrations=(FITTED,)))))
    run_dir = folder / "run"
    run_dir.mkdir(exist_ok=True)
    config = EdgeConfig(releases_dir=release, upstream=upstream, precision=precision, run_dir=run_dir)  # type: ignore[arg-type]
    (spec,) = Launcher(config).engines[0].specs()
    return int(json.loads(spec.arguments[-1])["precision"])


def test_the_lighter_weights_come_first_where_a_plan_can_weigh_them(tmp_path: Path) -> None:
    assert first_bits(tmp_path) == 4


def test_without_an_upstream_nothing_takes_what_four_bits_get_wrong(tmp_path: Path) -> None:
    assert first_bits(tmp_path, upstream="") == 8


def test_without_calibrations_there_is_nothing_to_weigh(tmp_path: Path) -> None:
    assert first_bits(tmp_path, fitted=False) == 8


@pytest.mark.parametrize("pinned", [4, 8])
def test_a_pin_beats_both(tmp_path: Path, pinned: int) -> None:
    assert first_bits(tmp_path, precision=str(pinned)) == pinned


def test_a_node_that_holds_four_bits_alone_serves_them(tmp_path: Path) -> None:
    first_bits(tmp_path, fitted=False)
    (tmp_path / "release" / PLANE_LO).unlink()
    assert first_bits(tmp_path, upstream="") == 4
