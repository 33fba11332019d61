"""Reads an encoder folder's config and says whether a classifier can be built on it, before any work is done.

Accepted are encoders laid out as BERT: absolute positions, one LayerNorm after each half of a layer, GELU.
RoBERTa and XLM-RoBERTa are among them; their position table begins after the padding token's row, and texts
are padded on the right, so it is the same table cut short.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantize.architecture import BLOCK_SIZE, positive, read_json, weight_files
from quantize.errors import UnsupportedArchitecture
from release.manifest import Architecture

# By model_type: what stands before the encoder's names in a model that has more than it.
FAMILIES: Mapping[str, str] = {"bert": "bert.", "roberta": "roberta.", "xlm-roberta": "roberta."}
ACTIVATIONS: Mapping[str, str] = {"gelu": "BiasGelu", "gelu_new": "FastGelu", "gelu_pytorch_tanh": "FastGelu"}


@dataclass(frozen=True, slots=True)
class Encoder:
    """An encoder folder. `first_position` is the row of the position table that a text's first token takes."""

    path: Path
    architecture: Architecture
    intermediate: int
    activation: str
    epsilon: float
    first_position: int
    prefix: str
    weight_files: tuple[Path, ...]


def read_encoder(path: Path) -> Encoder:
    """The encoder in `path`. Raises UnsupportedArchitecture saying what stands in the way."""
    config = read_json(path / "config.json")
    architecture, first = read_shape(path, config)
    return Encoder(
        path=path,
        architecture=architecture,
        intermediate=positive(path, config, "intermediate_size"),
        activation=ACTIVATIONS[config.get("hidden_act", "gelu")],
        epsilon=float(config.get("layer_norm_eps", 1e-12)),
        first_position=first,
        prefix=FAMILIES[architecture.family],
        weight_files=weight_files(path),
    )


def read_shape(path: Path, config: Mapping[str, Any]) -> tuple[Architecture, int]:
    """The shape of the encoder whose config.json lies in `path`, and its first position; needs no weights."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise UnsupportedArchitecture(
            f"{path} holds a model of type {family!r}; classifiers are built on {', '.join(FAMILIES)} encoders, "
            "or from a ready-made ONNX classifier"
        )
    if told := _refusal(config):
        raise UnsupportedArchitecture(f"{path}: {told}")
    heads, hidden = positive(path, config, "num_attention_heads"), positive(path, config, "hidden_size")
    for name, width in (("hidden_size", hidden), ("intermediate_size", positive(path, config, "intermediate_size"))):
        if width % BLOCK_SIZE:
            raise UnsupportedArchitecture(f"{path}: {name} is {width}, which is not a multiple of {BLOCK_SIZE}")
    if hidden % heads:
        raise UnsupportedArchitecture(f"{path}: hidden_size {hidden} is not a multiple of its {heads} heads")
    first = 0 if family == "bert" else int(config.get("pad_token_id", 1)) + 1
    shape = Architecture(
        family=str(family),
        layers=positive(path, config, "num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        hidden_size=hidden,
        vocabulary=positive(path, config, "vocab_size"),
        context_length=positive(path, config, "max_position_embeddings") - first,
    )
    return shape, first


def _refusal(config: Mapping[str, Any]) -> str | None:
    if config.get("quantization_config"):
        return "is quantized already: point to the original weights"
    if config.get("is_decoder") or config.get("add_cross_attention"):
        return "is set up as a decoder (is_decoder or add_cross_attention), which reads from left to right only"
    if config.get("position_embedding_type", "absolute") != "absolute":
        return f"positions of type {config['position_embedding_type']!r} are not supported, only 'absolute'"
    if config.get("hidden_act", "gelu") not in ACTIVATIONS:
        return f"hidden_act {config['hidden_act']!r} is not supported, only {', '.join(ACTIVATIONS)}"
    if config.get("embedding_size", config.get("hidden_size")) != config.get("hidden_size"):
        return "its embedding is narrower than its layers, which is not supported"
    return None
