"""Tiny models as GGUF files, made from Hugging Face folders of tests.models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def write_qwen2_gguf(source: Path, target: Path) -> Path:
    """`source` is a folder of tests.models.tiny_qwen2_folder; weights are kept at 32 bits."""
    return write_gguf(source, target, "qwen2")


def write_gguf(source: Path, target: Path, architecture: str, **stated: Any) -> Path:
    """`source` is a model folder; `stated` are further keys, with _ for ., written under the architecture."""
    import gguf
    from safetensors.numpy import load_file

    config = json.loads((source / "config.json").read_text())
    writer = gguf.GGUFWriter(target, architecture)
    writer.add_license("apache-2.0")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(10000.0)
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if architecture in ("gemma2", "gemma3") or "sliding_window" in stated:
        writer.add_sliding_window(stated.pop("sliding_window", config.get("sliding_window")))
    for key, value in stated.items():
        _state(writer, f"{architecture}.{key.replace('__', '.')}", value)
    _add_tokenizer(writer, source)
    names = gguf.get_tensor_name_map(_kind(architecture), config["num_hidden_layers"])
    for name, tensor in load_file(source / "model.safetensors").items():
        # The format keeps Gemma's norms as what they multiply by.
        own = tensor + 1 if architecture.startswith("gemma") and "norm" in name else tensor
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), np.ascontiguousarray(own))
    _finish(writer)
    return target


def write_keys(
    source: Path, target: Path, architecture: str, stated: Mapping[str, Any], tensors: Sequence[str] = ()
) -> Path:
    """A file that says it is of a family, hidden 64 and 4 heads, with further keys and small tensors."""
    import gguf

    writer = gguf.GGUFWriter(target, architecture)
    writer.add_block_count(2)
    writer.add_embedding_length(64)
    writer.add_head_count(4)
    for key, value in stated.items():
        _state(writer, f"{architecture}.{key.replace('__', '.')}", value)
    _add_tokenizer(writer, source)
    for name in tensors:
        writer.add_tensor(name, np.ones(32, np.float32))
    _finish(writer)
    return target


def _state(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


def _kind(architecture: str) -> Any:
    import gguf

    return next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)


def _finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: Any, source: Path) -> None:
    document = json.loads((source / "tokenizer.json").read_text())
    vocabulary = document["model"]["vocab"]
    special = {item["content"] for item in document["added_tokens"] if item["special"]}
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in document["model"]["merges"]]
    )
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template((source / "chat_template.jinja").read_text())
