"""The README's examples, as they stand there: every `curl` of it runs against a real node."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.edge_process import EdgeProcess, calibrated_release, edge_process

README = Path(__file__).resolve().parents[2] / "README.md"
ADDRESS = "localhost:8080"
_BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)


def examples() -> list[str]:
    """Each command that begins with curl, up to where the next one or the block ends."""
    commands = [part for block in _BLOCK.findall(README.read_text()) for part in re.split(r"^\$ ", block, flags=re.M)]
    return [command.strip() for command in commands if command.startswith("curl")]


@pytest.fixture(scope="session")
def curl() -> str:
    """Where it is. Without it the examples are skipped, but not in CI."""
    found = shutil.which("curl")
    if found is None and os.environ.get("CI"):
        pytest.fail("curl is not installed, and in CI the README's examples must run")
    if found is None:
        pytest.skip("curl is not installed")
    return found


@pytest.fixture(scope="module")
def node(curl: str, smollm2_release: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EdgeProcess]:
    folder = tmp_path_factory.mktemp("readme") / "release"
    calibrated_release(smollm2_release, folder, "1.0.0", 5.0)
    with edge_process(folder, context_length=1024) as running:
        yield running


def run(command: str, node: EdgeProcess) -> str:
    told = command.replace(ADDRESS, node.http.removeprefix("http://"))
    done = subprocess.run(["bash", "-c", told], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def documents(answer: str) -> list[Any]:
    if not answer.startswith("data: "):
        return [json.loads(answer)]
    events = [line.removeprefix("data: ") for line in answer.splitlines() if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


def test_there_are_examples() -> None:
    assert len(examples()) >= 5


@pytest.mark.real_model
@pytest.mark.parametrize("number", range(len(examples())))
def test_an_example_works(node: EdgeProcess, number: int) -> None:
    command = examples()[number]
    told = documents(run(command, node))
    assert all("error" not in document for document in told)
    assert told[-1]["weir"]["tier"] == "edge"
    if "json_schema" in command:
        answer = json.loads(told[0]["choices"][0]["message"]["content"])
        assert answer["city"] == "Cambridge"
        assert 1 <= answer["nights"] <= 30
    if '"tools"' in command:
        (call,) = told[0]["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == "weather"
        assert json.loads(call["function"]["arguments"])["city"] in ("Graz", "Linz", "Wien")
    if "include_usage" in command:
        assert told[-1]["usage"]["completion_tokens"] > 0
    if "logprobs" in command:
        assert told[0]["choices"][0]["logprobs"]["token_logprobs"][0] <= 0
