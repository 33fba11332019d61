"""SmolLM2 pulled as a user would, with the cache that everything else uses: the second time is instant."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import pytest

from quantize.sources.catalogue import shipped
from quantize.sources.resolve import resolve
from tests.fakes.progress import Recorder

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(600)]

# Of the bf16 weights that transformers makes of the pinned GGUF file.
CONVERTED = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"


def test_smollm2_is_pulled_converted_and_cached() -> None:
    source = resolve("smollm2-135m-instruct", Recorder())
    began = time.monotonic()
    again = Recorder()
    assert resolve("smollm2-135m-instruct", again) == source
    assert time.monotonic() - began < 1.0
    assert not again.totals

    assert source.licence == "Apache-2.0"
    config = json.loads((source.folder / "config.json").read_text())
    assert (config["architectures"], config["num_hidden_layers"]) == (["LlamaForCausalLM"], 30)
    assert "<|im_start|>" in (source.folder / "chat_template.jinja").read_text()
    entry = shipped().find("smollm2-135m-instruct")
    assert entry is not None
    if source.origin.startswith("package index"):
        assert source.sha256 == entry.sha256
        assert _sha256(source.folder / "model.safetensors") == CONVERTED


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
