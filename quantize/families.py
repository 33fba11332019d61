"""The decoder families a release can be built from, and how far the exported graph computes each exactly.

A family stands here because a small model of it, built and run, gives transformers' logits
(tests/unit/quantize/test_families.py). What a config asks for beyond that is refused by name, or the
context is cut to the positions where the difference cannot show: a sliding window of W tokens is full
attention up to W positions, and long-context rotary factors are the short ones up to the original context.

Reads configs alone; must not know files, graphs or weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Config = Mapping[str, Any]
# What the exporter makes of a sliding window: there is none, full attention in every layer, or each layer its own.
Window = Literal["none", "whole", "per layer"]

_SILU = frozenset({"silu"})
_GELU_TANH = frozenset({"gelu_pytorch_tanh"})
_KINDS = ("sliding_attention", "full_attention")


@dataclass(frozen=True, slots=True)
class Family:
    """One `model_type` and its class in transformers.

    `tied`, `head_dim` and `default_window` are what an absent entry of the config means.
    """

    name: str
    architecture: str
    activations: frozenset[str] = _SILU
    rotary: frozenset[str] = frozenset({"default"})
    window: Window = "none"
    partial_rotary: bool = False
    tied: bool = False
    head_dim: int | None = None  # None: hidden_size / num_attention_heads
    default_window: int | None = None
    rotary_tables: int = 1


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family("llama", "LlamaForCausalLM", rotary=frozenset({"default", "llama3"})),
        Family("qwen2", "Qwen2ForCausalLM"),
        Family("qwen3", "Qwen3ForCausalLM", head_dim=128),
        Family("mistral", "MistralForCausalLM", window="whole", default_window=4096),
        Family(
            "phi3",
            "Phi3ForCausalLM",
            rotary=frozenset({"default", "longrope"}),
            window="whole",
            partial_rotary=True,
        ),
        # "gelu" in configs of the first release means the tanh approximation, as in transformers.
        Family("gemma", "GemmaForCausalLM", _GELU_TANH | {"gelu"}, tied=True, head_dim=256),
        Family("gemma2", "Gemma2ForCausalLM", _GELU_TANH, window="per layer", tied=True, head_dim=256),
        Family(
            "gemma3_text",
            "Gemma3ForCausalLM",
            _GELU_TANH,
            window="per layer",
            tied=True,
            head_dim=256,
            rotary_tables=2,
        ),
    )
}


def refusal(family: Family, config: Config) -> str | None:
    """Why a model of `family` cannot be built as its config wants it; None where it can."""
    return next((told for rule in _RULES if (told := rule(family, config)) is not None), None)


def exact_context(family: Family, config: Config) -> int | None:
    """The positions up to which the graph computes what the model does; None where there is no such limit."""
    limits = []
    window = config.get("sliding_window", family.default_window)
    if family.window == "whole" and window is not None:
        limits.append(int(window))
    rotary = _rotary_settings(config)[0]
    if _rotary_type(rotary) == "longrope":
        limits.append(int(rotary.get("original_max_position_embeddings") or config["original_max_position_embeddings"]))
    return min(limits, default=None)


def rotary_share(config: Config) -> float:
    """The share of each head's values that positions rotate."""
    return _share(_rotary_settings(config)[0], config)


def _quantized(_: Family, config: Config) -> str | None:
    return "is quantized already: point to the original weights" if config.get("quantization_config") else None


def _activation(family: Family, config: Config) -> str | None:
    key = "hidden_activation" if config.get("hidden_activation") else "hidden_act"
    default = next(iter(family.activations & (_SILU | _GELU_TANH)))
    value = config.get(key) or default
    if value in family.activations:
        return None
    return f"{key} {value!r} is not supported, only {_listed(family.activations)}"


def _rotary(family: Family, config: Config) -> str | None:
    for settings in _rotary_settings(config):
        kind = _rotary_type(settings)
        if kind not in family.rotary:
            return f"rope type {kind!r} is not supported in a {family.name} model, only {_listed(family.rotary)}"
        share = _share(settings, config)
        if share != 1 and not family.partial_rotary:
            return f"partial_rotary_factor {share} is not supported in a {family.name} model"
    return None


def _window(family: Family, config: Config) -> str | None:
    layers = config.get("layer_types") or ()
    unknown = sorted(set(layers) - set(_KINDS))
    if unknown:
        return f"layers of type {', '.join(map(repr, unknown))} are not supported"
    slides = config.get("use_sliding_window") or "sliding_attention" in layers
    if family.window == "none" and slides:
        return f"uses a sliding attention window, which is not supported in a {family.name} model"
    if family.window == "whole" and "sliding_attention" in layers:
        return "mixes layers with and without a sliding window, which is not supported in its family"
    return None


def _two_directions(_: Family, config: Config) -> str | None:
    told = "attends in both directions (use_bidirectional_attention): it embeds text and writes none"
    return told if config.get("use_bidirectional_attention") else None


_RULES = (_quantized, _activation, _rotary, _window, _two_directions)


def _rotary_settings(config: Config) -> tuple[Config, ...]:
    """The rotary settings, or those of each kind of layer where a config tells them apart."""
    settings = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return tuple(settings[kind] for kind in _KINDS if isinstance(settings.get(kind), Mapping)) or (settings,)


def _share(settings: Config, config: Config) -> float:
    return float(settings.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1)


def _rotary_type(settings: Config) -> str:
    kind = str(settings.get("rope_type") or settings.get("type") or "default")
    return "longrope" if kind == "su" else kind  # its first name


def _listed(values: frozenset[str]) -> str:
    return ", ".join(map(repr, sorted(values)))
