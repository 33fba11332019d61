"""How a model is laid over ranks, decided from its config.json before any weight is read.

    heads and KV heads divide by the ranks      everything is sharded
    they do not                                 attention is replicated on every rank, the rest sharded
    a width that cannot be sharded              refused, with the reason and what works instead

Pure: numbers in, a plan or a reason out. Must not know: torch, files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cloud.config import WeightPrecision
from cloud.engine import EngineCapabilities

REPLICATE = "replicate"
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


class PlanRefused(ValueError):
    """This model cannot run like this; the message names the numbers and says what works."""


@dataclass(frozen=True, slots=True)
class ShardingPlan:
    """`overrides` change single rules of the model's own plan; `note` says why, for logs."""

    ranks: int
    overrides: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def plan_sharding(
    config: Mapping[str, Any], precision: WeightPrecision, ranks: int, capabilities: EngineCapabilities
) -> ShardingPlan:
    """The plan for a model. Raises PlanRefused."""
    if precision not in capabilities.precisions:
        raise PlanRefused(f"precision {precision} is not offered; use one of {', '.join(capabilities.precisions)}")
    if ranks == 1:
        return ShardingPlan(1)
    if precision not in capabilities.tensor_parallel_precisions:
        offered = " or ".join(capabilities.tensor_parallel_precisions)
        raise PlanRefused(
            f"{precision} weights are packed per layer by bitsandbytes and cannot be sharded over "
            f"tensor_parallel_size = {ranks} ranks; use tensor_parallel_size = 1, or precision {offered}"
        )
    return _shard(config, ranks)


def _shard(config: Mapping[str, Any], ranks: int) -> ShardingPlan:
    heads, layers = config.get("num_attention_heads"), config.get("num_hidden_layers")
    if not isinstance(heads, int) or not isinstance(layers, int):
        raise PlanRefused(
            f"config.json of a {config.get('model_type', 'model of unknown type')} names no num_attention_heads or "
            "num_hidden_layers, so it cannot be sharded; use tensor_parallel_size = 1"
        )
    kv_heads = config.get("num_key_value_heads") or heads
    width = config.get("intermediate_size") or config.get("hidden_size") or ranks
    if ranks > width:
        raise PlanRefused(f"{ranks} ranks are more than the model's width of {width} can be cut into; use fewer")
    if heads % ranks == 0 and kv_heads % ranks == 0:
        return ShardingPlan(ranks)
    divide = [n for n in range(2, heads + 1) if heads % n == 0 and kv_heads % n == 0]
    works = f"; it would be sharded as well over {' or '.join(map(str, divide))}" if divide else ""
    note = (
        f"{heads} attention heads and {kv_heads} key/value heads do not divide by {ranks} ranks: attention is "
        f"replicated on every rank, the rest is sharded{works}"
    )
    return ShardingPlan(ranks, {f"model.layers.*.self_attn.{name}": REPLICATE for name in _ATTENTION}, note)


def check_devices(ranks: int, gpus: int) -> None:
    """Raises PlanRefused when some but not all ranks would find a GPU of their own."""
    if gpus and gpus < ranks:
        raise PlanRefused(
            f"tensor_parallel_size = {ranks} needs {ranks} GPUs and this machine shows {gpus}; use at most {gpus} "
            "ranks, or hide the GPUs (CUDA_VISIBLE_DEVICES=) to run on the CPU"
        )
