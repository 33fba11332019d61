"""The command line: exit codes, one JSON object, one line of error, and nothing heavy at its start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edge.slot_file import SlotFile
from tests.fakes.inference import FakeInference
from tests.unit.weir.serving import served
from tests.unit.weir.test_client import EDGE_FINAL
from weir import Unavailable
from weir.cli import extras, report
from weir.cli.main import app, main

FREE = "127.0.0.1:9"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "weir.cli.main", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("command", [(), ("ask",), ("edge", "serve"), ("cloud", "serve"), ("engine", "serve")])
def test_every_command_explains_itself(command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_every_command_takes_json() -> None:
    signing = ("init", "status", "refresh", "rotate", "recover", "export-root")
    commands = (
        *("demo", "ask", "pull", "quantize", "doctor", "edge serve", "cloud serve", "engine serve"),
        *("bench quality", "bench transfer", "bench switching", "bundle export", "bundle import"),
        *("publish", "releases", "withdraw", *(f"keys {name}" for name in signing)),
    )
    for command in commands:
        assert "--json" in CliRunner().invoke(app, [*command.split(), "--help"]).output, command


def test_the_exit_codes_of_a_real_process() -> None:
    assert run("--version").returncode == 0
    bad = run("ask")
    assert (bad.returncode, bad.stdout) == (2, "")
    failed = run("ask", "hello", "--node", FREE)
    assert failed.returncode == 1
    assert "Traceback" not in failed.stderr
    assert "weir edge serve" in failed.stderr


def test_starting_the_command_imports_no_model_runtime() -> None:
    code = (
        "import sys, weir.cli.main;"
        "heavy = {'torch', 'transformers', 'onnx', 'onnxruntime', 'numpy', 'matplotlib', 'fastapi', 'redis'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_asking_a_node_prints_the_answer_and_its_provenance(capsys: pytest.CaptureFixture[str]) -> None:
    with served(FakeInference(final=EDGE_FINAL)) as target:
        assert main(["ask", "hello", "--node", target]) == 0
    said = capsys.readouterr()
    assert said.out == "one two three\n"
    assert "edge (confident)" in said.err
    assert "confidence 0.75 against 0.50" in said.err


def test_a_streamed_answer_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    with served(FakeInference()) as target:
        assert main(["ask", "hello", "--node", target, "--stream"]) == 0
    assert capsys.readouterr().out == "one two three\n"


def test_asking_in_json_prints_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    with served(FakeInference(final=EDGE_FINAL)) as target:
        assert main(["ask", "hello", "--node", target, "--edge-only", "--stream", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["text"], said["tier"], said["weight_digest"]) == ("one two three", "edge", "d4")


def test_a_constraint_reaches_the_node() -> None:
    service = FakeInference()
    with served(service) as target:
        assert main(["ask", "hello", "--node", target, "--cloud-only", "--system", "be short"]) == 0
    assert service.requests[0].constraints.tier == "cloud_only"
    assert [turn.role for turn in service.requests[0].messages] == ["system", "user"]


def test_a_node_that_is_there_and_cannot_answer_says_why_itself(capsys: pytest.CaptureFixture[str]) -> None:
    class Busy(FakeInference):
        async def describe(self, call: object, probe_bytes: int = 0):  # type: ignore[no-untyped-def]
            self.fail_before = None
            return await super().describe(call, probe_bytes)  # type: ignore[arg-type]

    with served(Busy(fail_before=Unavailable("no engine and no upstream"))) as target:
        assert main(["ask", "hello", "--node", target]) == 1
    assert "no engine and no upstream" in capsys.readouterr().err


def test_both_constraints_at_once_are_bad_use() -> None:
    assert main(["ask", "hello", "--edge-only", "--cloud-only"]) == 2


def test_an_error_in_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", "hello", "--node", FREE, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "Unavailable"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["edge", "serve"], "releases_dir"),
        (["edge", "serve", "--releases-dir", "/nowhere", "--set", "slots=none"], "slots"),
        (["edge", "serve", "--releases-dir", "/nowhere", "--set", "slots"], "KEY=VALUE"),
        (["edge", "serve", "--releases-dir", "/nowhere", "--set", "private_classes=[1"], "JSON"),
        (["admin", "serve"], "token"),
        (["edge", "serve", "--config", "/nowhere.toml"], "/nowhere.toml"),
        (["quantize", "smollm2-135m-instruct", "--out", "/tmp/never"], "--cloud-reference"),
    ],
)
def test_bad_settings_are_bad_use_and_named(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_release_that_is_not_there_is_a_failure_in_one_line() -> None:
    failed = run("edge", "serve", "--releases-dir", "/nowhere")
    assert failed.returncode == 1
    assert "/nowhere" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_an_unknown_model_is_a_failure_that_says_what_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "smollm2-135m-instrct"]) == 1
    assert "smollm2-135m-instruct" in capsys.readouterr().err


def test_a_missing_extra_says_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    error = extras.MissingExtra("weir edge serve needs x: pip install 'weir-inference[edge]'")
    assert report.explain(error, as_json=False) == report.FAILED
    assert "pip install 'weir-inference[edge]'" in capsys.readouterr().err


def test_an_unexpected_fault_leaves_its_trace_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ZeroDivisionError("odd")
    except ZeroDivisionError as fault:
        assert report.explain(fault, as_json=False) == report.FAILED
    said = capsys.readouterr().err
    path = Path(said.rsplit(" ", 1)[1].strip())
    assert "ZeroDivisionError: odd" in path.read_text()
    path.unlink()


def test_the_doctor_knows_what_is_in_force_and_where_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "weir.toml"
    file.write_text(f'[edge]\nslots = 3\ngrpc_address = "{FREE}"\n[gateway]\naddress = "{FREE}"\n')
    monkeypatch.setenv("WEIR_EDGE__THREADS", "2")
    monkeypatch.setenv("WEIR_ADMIN__TOKEN", "very-secret-indeed-0123")
    with served(FakeInference()) as target:
        monkeypatch.setenv("WEIR_EDGE__UPSTREAM", target)
        monkeypatch.setenv("WEIR_ENGINE__ADDRESS", FREE)
        assert main(["doctor", "--config", str(file), "--json"]) == 0
    text = capsys.readouterr().out
    found = json.loads(text)
    edge = found["settings"]["edge"]
    assert edge["unset"] == ["releases_dir"]
    assert (edge["slots"]["value"], edge["threads"]["from"]) == ("3", "environment")
    assert str(file) in edge["slots"]["from"]
    assert found["endpoints"]["edge's upstream"]["state"] == "ready"
    assert found["endpoints"]["gateway"]["state"] == "does not answer"
    assert found["machine"]["threads"] >= 1
    assert "very-secret-indeed-0123" not in text


def test_the_doctor_fails_on_a_wrong_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("EDGE__GRPC_ADDRESS", "GATEWAY__ADDRESS", "ENGINE__ADDRESS"):
        monkeypatch.setenv(f"WEIR_{name}", FREE)
    monkeypatch.setenv("WEIR_EDGE__SLOTS", "many")
    assert main(["doctor"]) == 1
    assert "slots" in capsys.readouterr().out


def test_the_doctor_draws_what_it_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("EDGE__GRPC_ADDRESS", "GATEWAY__ADDRESS", "ENGINE__ADDRESS"):
        monkeypatch.setenv(f"WEIR_{name}", FREE)
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    for word in ("cpu_class", "endpoints", "does not answer", "[gateway]"):
        assert word in said


def test_the_doctor_tells_what_the_updater_is_doing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status = {
        "at": "2026-01-01T00:00:00", "wanted": "m@1.0.0+a",
        "held": {"m@0.9.0+b": [4]}, "bad": {"m@1.1.0+c": "it [crashed]"},
        "fetching": {"file": "plane.lo.bin", "release": "m@1.0.0+a", "missing_bytes": 7, "part": "eight"},
        "problem": "",
    }  # fmt: skip
    monkeypatch.setenv("WEIR_EDGE__STORE_DIR", str(tmp_path))
    monkeypatch.setenv("WEIR_EDGE__GRPC_ADDRESS", FREE)
    assert main(["doctor", "--json"]) == 0
    assert "no node has run" in json.loads(capsys.readouterr().out)["updates"]["problem"]
    (tmp_path / "status.json").write_text(json.dumps(status))
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for part in ("m@1.0.0+a", "m@0.9.0+b at 4 bits", "it [crashed]", "plane.lo.bin"):
        assert part in text


def test_a_release_that_was_given_up_may_be_tried_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slots = SlotFile(tmp_path)
    slots.change("m", lambda now: now.offered("m@1.0.0+a").failed("it crashed"))
    assert main(["edge", "retry", "m@2.0.0+b", "--store-dir", str(tmp_path)]) == 2
    assert main(["edge", "retry", "m@1.0.0+a", "--store-dir", str(tmp_path), "--json"]) == 0
    assert '"retried": "m@1.0.0+a"' in capsys.readouterr().out
    assert not slots.read("m").bad
