"""The shipped catalogue is whole, and a broken one is refused by name."""

from __future__ import annotations

import pytest

from quantize.sources.catalogue import parse, shipped
from quantize.sources.folder import TASKS

NAMES = ["smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-1.5b-instruct", "minilm-l6"]

TABLE = """
[[model]]
name = "one"
hub = "org/one"
licence = "MIT"
task = "text-generation"
architecture = "LlamaForCausalLM"
format = "gguf"
data = "model.gguf"
bytes = 3
converted_bytes = 6
sha256 = "{digest}"
[[model.wheel]]
distribution = "one-data"
version = "1.0"
bytes = 2
sha256 = "{digest}"
files = {{ "one_data/part.bin" = "{target}" }}
"""
DIGEST = "0" * 64


def test_every_model_states_where_it_comes_from_and_under_which_licence() -> None:
    entries = shipped().entries
    assert [entry.name for entry in entries] == NAMES
    for entry in entries:
        assert entry.licence == "Apache-2.0"
        assert entry.hub.count("/") == 1
        assert TASKS[entry.architecture] == entry.task
        assert entry.wheels
        assert all(wheel.version and wheel.bytes > 0 for wheel in entry.wheels)
        assert entry.peak_bytes > entry.converted_bytes


def test_parts_are_joined_in_numeric_order() -> None:
    entry = shipped().find("qwen2.5-coder-1.5b-instruct")
    assert entry is not None
    members = [next(iter(wheel.files)) for wheel in entry.wheels]
    assert [member[-len("01.bin") :] for member in members] == [f"{number:02}.bin" for number in range(1, 23)]


@pytest.mark.parametrize("name", ["SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct", NAMES[0]])
def test_a_model_is_found_by_name_or_hub_id(name: str) -> None:
    entry = shipped().find(name)
    assert entry is not None
    assert entry.name == NAMES[0]


def test_a_misspelt_name_has_a_near_one() -> None:
    assert shipped().find("smolm2-135m") is None
    assert shipped().near("smolm2-135m")[0] == NAMES[0]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (TABLE.format(digest=DIGEST, target="other.gguf"), "no wheel holds model.gguf"),
        (TABLE.format(digest="xyz", target="model.gguf"), "'xyz' is not a SHA-256"),
        (TABLE.format(digest=DIGEST, target="model.gguf") * 2, "one stands twice"),
        (TABLE.format(digest=DIGEST, target="model.gguf").replace('"gguf"', '"zip"'), "not 'zip'"),
    ],
)
def test_a_broken_catalogue_is_refused(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        parse(text)
