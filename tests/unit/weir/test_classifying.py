"""`weir quantize --task classify`: refusals before any work, one release and its figures after it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from release.folder import open_release
from runtime.ort.classify import ClassifierModel
from tests.models import tiny_encoder_folder, tiny_onnx_classifier
from tests.unit.quantize.test_encoder import write_items
from weir.cli import report
from weir.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, dict[str, object]]:
    code = main(["quantize", *map(str, arguments), "--task", "classify", "--json"])
    content: dict[str, object] = json.loads(capsys.readouterr().out)
    return code, content


def told(document: dict[str, object]) -> str:
    error = document["error"]
    assert isinstance(error, dict)
    return str(error["message"])


def test_an_encoder_and_labelled_texts_become_a_measured_release(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, items = tiny_encoder_folder(tmp_path / "hf"), write_items(tmp_path / "items.csv")
    out = tmp_path / "out"
    code, document = run(capsys, source, "--out", out, "--labels-csv", items, "--name", "tiny", "--method", "rtn")
    assert code == 0
    release = open_release(out)
    assert document["release"] == release.id
    figures = {(figure.name, figure.precision): figure.value for figure in release.manifest.quality}
    assert figures["accuracy", 32] == figures["accuracy", 8] == 1.0
    assert figures["kl", 8] < figures["kl", 4]
    assert (tmp_path / "out.quality" / "report.md").is_file()
    assert ClassifierModel(release, 4).scores(["where is my parcel"]).shape == (1, 3)
    assert {entry.precision for entry in release.manifest.self_tests} == {4, 8}


def test_a_ready_made_classifier_is_measured_on_the_texts_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, items = tiny_onnx_classifier(tmp_path / "own"), write_items(tmp_path / "items.csv", count=12)
    out = tmp_path / "out"
    code, document = run(capsys, source, "--out", out, "--evaluation-csv", items)
    assert (code, document["method"]) == (0, "rtn-search")
    assert open_release(out).manifest.name == "own"


def test_a_bound_that_is_not_kept_leaves_no_release(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, items = tiny_onnx_classifier(tmp_path / "own"), write_items(tmp_path / "items.csv", count=12)
    out = tmp_path / "out"
    code, document = run(capsys, source, "--out", out, "--evaluation-csv", items, "--max-kl", "4=0.0000001")
    assert code == report.FAILED
    assert "4-bit KL" in told(document)
    assert not out.exists()


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ((), "give --labels-csv"),
        (("--labels-csv", "items.csv", "--cloud-reference", "larger"), "give the folder of the release that answers"),
        (("--labels-csv", "items.csv", "--evaluation-text", "items.csv"), "--evaluation-text is for models that write"),
    ],
)
def test_what_a_classifier_cannot_use_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], expected: str
) -> None:
    write_items(tmp_path / "items.csv")
    given = [str(tmp_path / part) if part.endswith(".csv") else part for part in more]
    code, document = run(capsys, tmp_path / "hf", "--out", tmp_path / "out", *given)
    assert code == report.BAD_USE
    assert expected in told(document)


def test_a_head_that_is_there_already_and_one_that_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, items = tiny_onnx_classifier(tmp_path / "own"), write_items(tmp_path / "items.csv")
    code, document = run(capsys, source, "--out", tmp_path / "out", "--labels-csv", items)
    assert (code, "leave --labels-csv out" in told(document)) == (report.BAD_USE, True)
    code, document = run(capsys, source, "--out", tmp_path / "out")
    assert (code, "give --evaluation-csv" in told(document)) == (report.BAD_USE, True)


def test_labelled_texts_are_for_classifiers_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = write_items(tmp_path / "items.csv")
    code = main(
        ["quantize", "x", "--out", str(tmp_path / "out"), "--labels-csv", str(items), "--no-calibrate", "--json"]
    )
    assert code == report.BAD_USE
    assert "--task classify" in told(json.loads(capsys.readouterr().out))
