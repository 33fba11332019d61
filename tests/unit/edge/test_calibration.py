"""From a manifest's calibrations to what is in force for a commit point."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from edge.calibration import Calibrated
from release.manifest import Calibration, EarlyStop, Manifest, read, release_id, sealed, write
from router.calibration import UNCALIBRATED_THRESHOLD
from router.confidence import FEATURES
from tests.fakes.releases import write_release


def entry(rule: str, threshold: float, precision: int = 8, cpu: str = "x86-vnni", **change: object) -> Calibration:
    width = len(FEATURES)
    fitted = Calibration(
        id=f"{rule}-{precision}-{cpu}",
        precision=precision,
        cpu_class=cpu,
        commit_rule=rule,
        mean=(0.0,) * width,
        scale=(1.0,) * width,
        coefficients=(0.0,) * width,
        intercept=0.0,
        threshold=threshold,
        features=FEATURES,
        n=10,
        n_agree=5,
        auroc=None,
        max_disagreement=0.1,
        escalation_share=0.2,
    )
    return dataclasses.replace(fitted, **change)  # type: ignore[arg-type]


@pytest.fixture
def bare(tmp_path: Path) -> Manifest:
    return write_release(tmp_path / "r")


def calibrated(bare: Manifest, *entries: Calibration, cpu: str = "x86-vnni") -> tuple[Calibrated, str]:
    manifest = sealed(dataclasses.replace(bare, calibrations=entries))
    return Calibrated(cpu, [manifest]), manifest.id


def test_a_release_without_calibration_is_trusted_with_nothing(bare: Manifest) -> None:
    known, release = calibrated(bare)
    for force in (known.in_force(release, 8, None), known.in_force("unknown", 8, 8)):
        assert force.end.calibrator is None
        assert force.end.threshold == force.prefix.threshold == UNCALIBRATED_THRESHOLD
    assert known.entry(release, 8) is None


def test_the_box_and_the_precision_choose(bare: Manifest) -> None:
    known, release = calibrated(
        bare, entry("end", 0.5), entry("end", 0.7, cpu="arm-i8mm"), entry("end", 0.6, precision=4)
    )
    assert known.in_force(release, 8, None).end.threshold == 0.5
    assert known.in_force(release, 4, None).end.threshold == 0.6
    assert known.entry(release, 4) is not None
    stranger, release = calibrated(bare, entry("end", 0.5), entry("end", 0.7, cpu="arm-i8mm"), cpu="")
    assert stranger.in_force(release, 8, None).end.threshold == 0.7


@pytest.mark.parametrize(("tokens", "threshold"), [(8, 0.8), (12, 0.8), (16, 0.75), (100, 0.75), (2, 0.8)])
def test_the_nearest_fitted_commit_point_stands_in(bare: Manifest, tokens: int, threshold: float) -> None:
    known, release = calibrated(bare, entry("end", 0.5), entry("prefix:8", 0.8), entry("prefix:16", 0.75))
    assert known.in_force(release, 8, tokens).prefix.threshold == threshold
    assert known.in_force(release, 8, tokens).end.threshold == 0.5


def test_without_any_fitted_commit_point_the_end_stands_in_more_carefully(bare: Manifest) -> None:
    known, release = calibrated(bare, entry("end", 0.5))
    force = known.in_force(release, 8, 8)
    assert force.prefix.calibrator is not None
    assert force.prefix.threshold == 0.75


STOP = EarlyStop((0.2, 0.3), 0.02, 100, 1, 300, 200)


def test_an_early_stop_comes_from_the_manifest(bare: Manifest) -> None:
    manifest = read(write(dataclasses.replace(bare, calibrations=(entry("end", 0.5, early_stop=STOP),))))
    assert manifest.calibrations[0].early_stop == STOP
    force = Calibrated("x86-vnni", [manifest]).in_force(manifest.id, 8, None)
    assert force.prefix.stop_levels == (0.2, 0.3)


def test_a_manifest_from_before_there_were_early_stops_gives_nothing_up(bare: Manifest) -> None:
    content = json.loads(write(dataclasses.replace(bare, calibrations=(entry("end", 0.5),))))
    del content["calibrations"][0]["early_stop"]
    manifest = read(json.dumps({**content, "id": release_id(content)}))
    force = Calibrated("x86-vnni", [manifest]).in_force(manifest.id, 8, None)
    assert force.end.calibrator is not None
    assert force.prefix.stop_levels == ()


@pytest.mark.parametrize("tokens", [4, 8, 9])
def test_a_commit_point_that_nobody_fitted_gives_nothing_up(bare: Manifest, tokens: int) -> None:
    known, release = calibrated(bare, entry("end", 0.5, early_stop=STOP), entry("prefix:8", 0.8, early_stop=STOP))
    assert known.in_force(release, 8, tokens).prefix.stop_levels == (STOP.levels if tokens == 8 else ())
    alone, release = calibrated(bare, entry("end", 0.5, early_stop=STOP))
    assert alone.in_force(release, 8, tokens).prefix.stop_levels == ()


@pytest.mark.parametrize("levels", [(1.5,), (-0.1,), (0.1,) * 33])
def test_levels_that_are_none_are_refused(levels: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="early_stop"):
        EarlyStop(levels, 0.02, 100, 1, 300, 200)


def test_choices_have_a_calibrator_of_their_own_or_none(bare: Manifest) -> None:
    known, release = calibrated(bare, entry("end", 0.5), entry("prefix:8", 0.8))
    force = known.for_choices(release, 8)
    assert (force.end.calibrator, force.end.threshold) == (None, UNCALIBRATED_THRESHOLD)
    fitted, release = calibrated(bare, entry("end", 0.5), entry("choice", 0.7))
    assert fitted.for_choices(release, 8).end.threshold == fitted.for_choices(release, 8).prefix.threshold == 0.7
    assert fitted.for_choices("unknown", 8).end.calibrator is None


def test_a_calibrator_of_other_features_is_not_used(bare: Manifest) -> None:
    width = len(FEATURES) - 1
    odd = entry(
        "end", 0.5, features=FEATURES[1:], mean=(0.0,) * width, scale=(1.0,) * width, coefficients=(0.0,) * width
    )
    known, release = calibrated(bare, odd)
    assert known.in_force(release, 8, None).end.calibrator is None
