"""The command that says which box carries a model: one JSON object, plain refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import releases
from weir.cli import report
from weir.cli.main import main
from weir.cli.size import parse_bytes


@pytest.mark.parametrize(
    ("text", "expected"), [("4GiB", 4 << 30), ("512MB", 512_000_000), ("1.5 gb", 1_500_000_000), ("4096", 4096)]
)
def test_a_memory_is_read(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "much", "4TB", "-1GB", "0"])
def test_what_is_no_memory_is_refused(text: str) -> None:
    with pytest.raises(report.BadUse, match="is no size"):
        parse_bytes(text)


def test_a_release_is_sized_by_its_manifest(capsys: pytest.CaptureFixture[str]) -> None:
    folder = releases.tiny()
    assert main(["size", str(folder), "--memory", "100MB", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    wire, files = document["wire_bytes"], {path.name: path.stat().st_size for path in folder.iterdir()}
    whole = sum(files.values()) - files["manifest.json"]
    assert wire["both"] == whole
    assert wire["4"] == whole - files["plane.lo.bin"] - files["graph.8.onnx"]
    assert document["context"] == 512  # no more than the model takes
    assert document["fits"] == {"4": False, "8": False, "both": False}
    assert set(document["per_second"]) == {"4", "8"}


def test_a_folder_is_sized_before_it_is_built(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", str(releases.tiny_hf()), "--memory", "4GiB", "--slots", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["release"], document["task"], document["family"]) == (None, "generate", "llama")
    assert document["fits"]["both"]
    assert document["node_bytes"]["4"] > document["engine_peak_bytes"]["4"] >= document["engine_bytes"]["4"]


def test_only_a_release_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", str(releases.tiny_hf()), "--measure", "--json"]) == report.BAD_USE
    assert "build" in json.loads(capsys.readouterr().out)["error"]["message"]
    assert main(["size", str(releases.tiny()), "--measure", "--threads", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["speed_from"] == "the release itself"


def test_an_unsupported_model_is_refused_with_its_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    assert main(["size", str(tmp_path), "--json"]) == report.FAILED
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["kind"], "'mamba'" in error["message"]) == ("UnsupportedArchitecture", True)


def test_a_table_says_what_it_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", str(releases.tiny())]) == 0
    told = capsys.readouterr()
    assert "on the wire" in told.out
    assert "KV cache" in told.err
