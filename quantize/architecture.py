"""Reads a model folder's config and says whether it can become a release, before any work is done.

Accepted are decoders of the families in `quantize.families`, in safetensors. Everything else is refused
with what is missing, never built approximately.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantize.errors import UnsupportedArchitecture
from quantize.families import FAMILIES, Family, exact_context, refusal, rotary_share
from release.manifest import Architecture

BLOCK_SIZE = 32
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
    family = _family(path, config)
    architecture = read_architecture(path, config)
    return SourceModel(
        path, architecture, _eos(path, config), bool(config.get("tie_word_embeddings", family.tied)), weight_files(path)
    )


def read_architecture(path: Path, config: Mapping[str, Any]) -> Architecture:
    """The shape of the model whose config.json lies, or would lie, in `path`; weights are not looked for.

    Raises UnsupportedArchitecture.
    """
    family = _family(path, config)
    told = refusal(family, config)
    if told is not None:
        raise UnsupportedArchitecture(f"{path}: {told}")
    heads = positive(path, config, "num_attention_heads")
    hidden = positive(path, config, "hidden_size")
    longest = positive(path, config, "max_position_embeddings")
    architecture = Architecture(
        family=family.name,
        layers=positive(path, config, "num_hidden_layers"),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or family.head_dim or hidden // heads),
        hidden_size=hidden,
        vocabulary=positive(path, config, "vocab_size"),
        context_length=min(longest, exact_context(family, config) or longest, _MOST_CONTEXT),
    )
    rotated = int(architecture.head_dim * rotary_share(config))
    _check_widths(path, architecture, positive(path, config, "intermediate_size"), rotated)
    return architecture


def _family(path: Path, config: Mapping[str, Any]) -> Family:
    name = config.get("model_type")
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        raise UnsupportedArchitecture(
            f"{path} holds a model of type {name!r}; Weir builds releases from {', '.join(FAMILIES)} models"
        )
    declared = config.get("architectures") or [family.architecture]
    if family.architecture not in declared:
        raise UnsupportedArchitecture(
            f"{path} holds {declared[0]}, which does not write text; need {family.architecture}"
        )
    return family


def _check_widths(path: Path, architecture: Architecture, intermediate: int, rotated: int) -> None:
    widths = {
        "hidden_size": architecture.hidden_size,
        "intermediate_size": intermediate,
        "num_attention_heads x head_dim": architecture.heads * architecture.head_dim,
    }
    for name, width in widths.items():
        if width % BLOCK_SIZE:
            raise UnsupportedArchitecture(f"{path}: {name} is {width}, which is not a multiple of {BLOCK_SIZE}")
    if architecture.kv_heads < 1 or architecture.heads % architecture.kv_heads:
        raise UnsupportedArchitecture(
            f"{path}: {architecture.heads} heads cannot share {architecture.kv_heads} key/value heads"
        )
    if rotated % 16:
        raise UnsupportedArchitecture(f"{path}: {rotated} values a head are rotated, which is not a multiple of 16")


def weight_files(path: Path) -> tuple[Path, ...]:
    """The weights of a model folder that has a tokenizer too. Raises UnsupportedArchitecture."""
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


def positive(path: Path, config: Mapping[str, Any], name: str) -> int:
    """An entry of a config that must be a number above 0. Raises UnsupportedArchitecture."""
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
