"""What can be built is known from the config alone; the rest is refused by name before any work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quantize.architecture import read_source
from quantize.build import build_release
from quantize.errors import QuantizeError, UnsupportedArchitecture
from quantize.families import FAMILIES

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 131072,
    "vocab_size": 384,
    "hidden_act": "silu",
    "eos_token_id": 2,
}


def folder(path: Path, **changes: Any) -> Path:
    config = {key: value for key, value in {**LLAMA, **changes}.items() if value is not ...}
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors").write_bytes(b"weights")
    (path / "tokenizer.json").write_text("{}")
    return path


def test_the_shape_is_read_and_a_long_context_is_cut(tmp_path: Path) -> None:
    source = read_source(folder(tmp_path))
    assert source.architecture.head_dim == 16
    assert source.architecture.context_length == 8192
    assert not source.tied
    assert source.eos_token_ids == (2,)


def test_every_end_token_counts(tmp_path: Path) -> None:
    folder(tmp_path, eos_token_id=7)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 7]}))
    assert read_source(tmp_path).eos_token_ids == (9, 7)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model_type": "mamba"}, "type 'mamba'"),
        ({"model_type": ...}, "type None"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "does not write text"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized already"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"head_dim": 24, "num_attention_heads": 8}, "24 values a head are rotated"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "sliding"),
        ({"layer_types": ["linear_attention"]}, "layers of type 'linear_attention'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2}}, "rope type 'linear'"),
        ({"use_sliding_window": True}, "sliding"),
        ({"rope_scaling": {"type": "yarn"}}, "rope type 'yarn'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope type 'longrope'"),
        ({"hidden_size": 72}, "hidden_size is 72"),
        ({"intermediate_size": 100}, "intermediate_size is 100"),
        ({"num_key_value_heads": 3}, "4 heads cannot share 3"),
        ({"vocab_size": 0}, "vocab_size must be a positive"),
        ({"num_hidden_layers": ...}, "num_hidden_layers must be a positive"),
        ({"eos_token_id": ...}, "eos_token_id"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(UnsupportedArchitecture, match=told):
        read_source(folder(tmp_path, **changes))


@pytest.mark.parametrize(
    ("family", "changes", "told"),
    [
        ("gemma3_text", {"use_bidirectional_attention": True}, "both directions"),
        ("gemma3_text", {"hidden_activation": "silu"}, "hidden_activation 'silu'"),
        (
            "gemma3_text",
            {"rope_parameters": {"sliding_attention": {"rope_type": "default"}, "full_attention": {"type": "linear"}}},
            "rope type 'linear'",
        ),
        ("qwen3", {"use_sliding_window": True}, "sliding"),
        ("phi3", {"rope_scaling": {"type": "yarn"}}, "rope type 'yarn'"),
        ("phi3", {"partial_rotary_factor": 0.5}, "8 values a head are rotated"),
        ("mistral", {"layer_types": ["sliding_attention", "full_attention"]}, "mixes layers"),
        ("gemma2", {"architectures": ["Gemma2ForSequenceClassification"]}, "does not write text"),
    ],
)
def test_each_family_refuses_what_its_graph_would_lose(
    tmp_path: Path, family: str, changes: dict[str, Any], told: str
) -> None:
    own = {"model_type": family, "architectures": [FAMILIES[family].architecture], "hidden_act": ...}
    with pytest.raises(UnsupportedArchitecture, match=told):
        read_source(folder(tmp_path, **{**own, **changes}))


@pytest.mark.parametrize(
    ("family", "changes", "context"),
    [
        ("mistral", {}, 4096),  # what transformers takes where a config is silent
        ("mistral", {"sliding_window": None}, 8192),
        ("phi3", {"sliding_window": 2047}, 2047),
        (
            "phi3",
            {"rope_scaling": {"type": "su", "short_factor": [1]}, "original_max_position_embeddings": 1024},
            1024,
        ),
        ("gemma2", {"sliding_window": 512}, 8192),
    ],
)
def test_a_context_is_cut_to_where_the_graph_is_exact(
    tmp_path: Path, family: str, changes: dict[str, Any], context: int
) -> None:
    own = {"model_type": family, "architectures": [FAMILIES[family].architecture], "hidden_act": ..., "head_dim": 16}
    assert read_source(folder(tmp_path, **{**own, **changes})).architecture.context_length == context


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_folder_that_lacks_a_file_is_refused(tmp_path: Path, missing: str) -> None:
    (folder(tmp_path) / missing).unlink()
    with pytest.raises(UnsupportedArchitecture, match=missing.replace("model.safe", "safe")):
        read_source(tmp_path)


def test_a_config_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (folder(tmp_path) / "config.json").write_text("{")
    with pytest.raises(UnsupportedArchitecture, match="cannot be read"):
        read_source(tmp_path)


def test_a_refused_build_touches_nothing(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with pytest.raises(UnsupportedArchitecture):
        build_release(folder(source, model_type="mamba"), tmp_path / "deep" / "out", name="x")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize(("name", "version"), [("X y", "1.0.0"), ("x", "one"), ("", "1.0.0")])
def test_a_name_no_release_may_have_is_refused_before_any_work(tmp_path: Path, name: str, version: str) -> None:
    with pytest.raises(QuantizeError, match=r"^(name|version) "):
        build_release(folder(tmp_path), tmp_path / "out", name=name, version=version)


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    out.mkdir()
    (out / "precious").write_text("mine")
    for replace in (False, True):
        with pytest.raises(QuantizeError, match="exists already"):
            build_release(folder(source), out, name="x", replace=replace)
    assert (out / "precious").read_text() == "mine"


def test_a_failed_export_leaves_nothing_and_says_why(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    with pytest.raises(QuantizeError, match=r"exporting .* failed"):
        build_release(folder(source), out, name="x")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
