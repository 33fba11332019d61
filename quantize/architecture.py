"""Reads a model folder's config and says whether it can become a release, before any work is done.

Accepted are decoders of the Llama and Qwen2 families with grouped-query attention, rotary positions
and a SiLU-gated MLP, in safetensors. Everything else is refused with what is missing, never built
approximately.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantize.errors import UnsupportedArchitecture
from release.manifest import Architecture

BLOCK_SIZE = 32
FAMILIES: Mapping[str, str] = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
_ROPE_TYPES = frozenset({"default", "llama3"})
_MOST_CONTEXT = 8192  # longer position tables are cut: an edge node's KV cache is far smaller


@dataclass(frozen=True, slots=True)
class SourceModel:
    """A model folder that can be built. `tied`: head and embedding are one matrix."""

    path: Path
    architecture: Architecture
    eos_token_ids: tuple[int, ...]
    tied: bool
    weight_files: tuple[Path, ...]

    @property
    def weight_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.weight_files)


def read_source(path: Path) -> SourceModel:
    """The model in `path`. Raises UnsupportedArchitecture saying what stands in the way."""
    config = read_json(path / "config.json")
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise UnsupportedArchitecture(
            f"{path} holds a model of type {family!r}; Weir builds releases from {' and '.join(FAMILIES)} models"
        )
    declared = config.get("architectures") or [FAMILIES[family]]
    if FAMILIES[family] not in declared:
        raise UnsupportedArchitecture(f"{path} holds {declared[0]}, which does not write text; need {FAMILIES[family]}")
    _refuse_variants(path, config)
    architecture = _architecture(path, family, config)
    return SourceModel(
        path, architecture, _eos(path, config), bool(config.get("tie_word_embeddings", False)), _weights(path)
    )


def _architecture(path: Path, family: str, config: Mapping[str, Any]) -> Architecture:
    heads = _size(path, config, "num_attention_heads")
    hidden = _size(path, config, "hidden_size")
    head_dim = config.get("head_dim") or hidden // heads
    architecture = Architecture(
        family=family,
        layers=_size(path, config, "num_hidden_layers"),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        hidden_size=hidden,
        vocabulary=_size(path, config, "vocab_size"),
        context_length=min(_size(path, config, "max_position_embeddings"), _MOST_CONTEXT),
    )
    widths = {
        "hidden_size": hidden,
        "intermediate_size": _size(path, config, "intermediate_size"),
        "num_attention_heads x head_dim": heads * head_dim,
    }
    for name, width in widths.items():
        if width % BLOCK_SIZE:
            raise UnsupportedArchitecture(f"{path}: {name} is {width}, which is not a multiple of {BLOCK_SIZE}")
    if architecture.kv_heads < 1 or heads % architecture.kv_heads:
        raise UnsupportedArchitecture(f"{path}: {heads} heads cannot share {architecture.kv_heads} key/value heads")
    if head_dim % 8:
        raise UnsupportedArchitecture(f"{path}: head_dim is {head_dim}, which is not a multiple of 8")
    return architecture


def _refuse_variants(path: Path, config: Mapping[str, Any]) -> None:
    if config.get("quantization_config"):
        raise UnsupportedArchitecture(f"{path} is quantized already: point to the original weights")
    if config.get("hidden_act", "silu") != "silu":
        raise UnsupportedArchitecture(f"{path}: hidden_act {config['hidden_act']!r} is not supported, only 'silu'")
    if config.get("use_sliding_window"):
        raise UnsupportedArchitecture(f"{path} uses a sliding attention window, which is not supported")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in _ROPE_TYPES:
        raise UnsupportedArchitecture(f"{path}: rope type {kind!r} is not supported, only {sorted(_ROPE_TYPES)}")


def _weights(path: Path) -> tuple[Path, ...]:
    files = tuple(sorted(path.glob("*.safetensors")))
    if not files:
        raise UnsupportedArchitecture(f"{path} has no .safetensors weights: convert it first, as `weir pull` does")
    if not (path / "tokenizer.json").is_file():
        raise UnsupportedArchitecture(f"{path} has no tokenizer.json: save its fast tokenizer there first")
    return files


def _eos(path: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Every token that ends an answer: what generation_config.json and config.json say, together."""
    found: dict[int, None] = {}
    generation = path / "generation_config.json"
    for source in (read_json(generation) if generation.is_file() else {}, config):
        value = source.get("eos_token_id")
        for token in value if isinstance(value, list) else [value]:
            if isinstance(token, int):
                found[token] = None
    if not found:
        raise UnsupportedArchitecture(f"{path}: neither config.json nor generation_config.json has an eos_token_id")
    return tuple(found)


def _size(path: Path, config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UnsupportedArchitecture(f"{path / 'config.json'}: {name} must be a positive whole number, not {value!r}")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a model folder. Raises UnsupportedArchitecture."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UnsupportedArchitecture(f"{path.parent} is not a model folder: it has no {path.name}") from error
    except (ValueError, NotADirectoryError, UnicodeDecodeError) as error:
        raise UnsupportedArchitecture(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise UnsupportedArchitecture(f"{path} must hold a JSON object")
    return content
