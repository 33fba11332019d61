"""`weir quantize`: figures in the manifest and beside it, and bounds that keep a release from its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quantize.gates import QualityRefused
from quantize.progress import Silent
from release.folder import open_release
from tests import releases
from weir.cli.building import Built, Method, Order, build
from weir.cli.main import main
from weir.cli.measuring import Measuring


def order(source: Path, out: Path, measuring: Measuring | None) -> Order:
    return Order(str(source), out, "tiny", "1.0.0", None, None, 0.1, Method.RTN, measuring=measuring)


def made(source: Path, out: Path, measuring: Measuring | None) -> Built:
    return build(order(source, out, measuring), Silent(), export=releases.tiny_exported())


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def test_a_release_comes_with_its_figures_self_tests_and_report(tiny_hf_folder: Path, tmp_path: Path) -> None:
    built = made(tiny_hf_folder, tmp_path / "out", Measuring(max_kl=("4=2", "8=0.1"), min_agreement=("0.1",)))
    manifest = open_release(tmp_path / "out").manifest
    assert manifest == built.manifest
    figures = {(figure.name, figure.precision): figure.value for figure in manifest.quality}
    assert {("kl", 4), ("kl", 8), ("top1_agreement", 4), ("perplexity", 32)} <= set(figures)
    assert [test.precision for test in manifest.self_tests] == [4, 8]
    assert built.report == tmp_path / "out.quality" / "report.md"
    assert built.report is not None
    text = built.report.read_text()
    assert manifest.id in text
    assert f"{figures['kl', 8]:.5f}" in text
    assert names(tmp_path) == {"out", "out.quality"}


def test_a_release_that_is_too_far_off_is_not_put_in_its_place(tiny_hf_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(QualityRefused, match=r"8-bit KL 0\.\d{4} is over 1e-09"):
        made(tiny_hf_folder, tmp_path / "out", Measuring(max_kl=("8=1e-9",)))
    assert names(tmp_path) == {"out.quality"}
    assert "**Not published:** 8-bit KL" in (tmp_path / "out.quality" / "report.md").read_text()


def test_without_measuring_there_are_self_tests_and_no_report(tiny_hf_folder: Path, tmp_path: Path) -> None:
    built = made(tiny_hf_folder, tmp_path / "out", None)
    assert (built.evaluation, built.report) == (None, None)
    assert {figure.name for figure in built.manifest.quality} == {"relative_weight_error"}
    assert len(built.manifest.self_tests) == 2
    assert names(tmp_path) == {"out"}


def test_the_command_prints_all_figures_as_json(
    tiny_hf_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["quantize", str(tiny_hf_folder), "--out", str(out), "--name", "tiny", "--no-calibrate"]
    assert main([*command, "--method", "rtn", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    manifest = open_release(out).manifest
    assert (said["release"], said["method"], said["self_tests"]) == (manifest.id, "rtn", 2)
    assert said["report"] == str(tmp_path / "out.quality" / "report.md")
    assert [(entry["name"], entry["precision"], entry["value"]) for entry in said["quality"]] == [
        (figure.name, figure.precision, figure.value) for figure in manifest.quality
    ]


@pytest.mark.parametrize(
    ("more", "refusal"),
    [
        (["--max-kl", "much"], (2, "is no bound")),
        (["--no-evaluate", "--max-kl", "0.2"], (2, "--no-evaluate")),
        (["--method", "rtn", "--calibration-text", "x"], (2, "--calibration-text")),
        (["--evaluation-text", "/nowhere.txt"], (1, "/nowhere.txt")),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(
    more: list[str], refusal: tuple[int, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = refusal
    command = ["quantize", "/no/model", "--out", str(tmp_path / "out"), "--no-calibrate", *more]
    assert main(command) == code
    assert said in " ".join(capsys.readouterr().err.split())
    assert names(tmp_path) == set()


def test_the_calibration_text_does_not_serve_to_measure(
    tiny_hf_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("A sentence of the owner's, long enough to be told from chance. " * 40)
    command = ["quantize", str(tiny_hf_folder), "--out", str(tmp_path / "out"), "--no-calibrate"]
    assert main([*command, "--calibration-text", str(text), "--evaluation-text", str(text)]) == 1
    assert "is the calibration text" in " ".join(capsys.readouterr().err.split())
    assert names(tmp_path) == {"text.txt"}
