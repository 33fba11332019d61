"""Loads a model's weights for one rank and says what it holds.

Only this module knows how transformers, torch.distributed and bitsandbytes are asked for a width or a
shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from cloud.config import WeightPrecision
from cloud.rank.plan import ShardingPlan
from cloud.rank.spec import RankSpec


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of parameters on this rank, and of the whole model in the same width."""

    parameter_bytes: int
    parameter_bytes_total: int


def load_model(spec: RankSpec, plan: ShardingPlan) -> Any:
    """The model, sharded by `plan`, in evaluation mode. Joins the process group first when there is one."""
    from transformers import AutoModelForCausalLM

    settings: dict[str, Any] = {"dtype": _dtype(spec.precision)}
    if plan.ranks > 1:
        from transformers.distributed import DistributedConfig

        settings["distributed_config"] = DistributedConfig(tp_size=plan.ranks, tp_plan=dict(plan.overrides) or "auto")
    elif torch.cuda.is_available():
        settings["device_map"] = {"": 0}
    if (quantization := _quantization(spec.precision)) is not None:
        settings["quantization_config"] = quantization
    model = AutoModelForCausalLM.from_pretrained(spec.model_dir, **settings).eval()
    if plan.overrides:
        # The batch's cache takes any rule for the key projection to mean sharded heads.
        model.tp_plan = {name: style for name, style in model.tp_plan.items() if name not in plan.overrides}
    return model


def _dtype(precision: WeightPrecision) -> torch.dtype:
    return torch.float32 if precision is WeightPrecision.FLOAT32 else torch.bfloat16


def _quantization(precision: WeightPrecision) -> Any:
    if precision not in (WeightPrecision.INT8, WeightPrecision.NF4):
        return None
    from transformers import BitsAndBytesConfig

    if precision is WeightPrecision.INT8:
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)


def held(model: Any) -> Held:
    """What this rank holds. Shared (tied) parameters count once."""
    local = total = 0
    for parameter in model.parameters():
        total += parameter.numel() * parameter.element_size()
        mine = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        local += mine.numel() * mine.element_size()
    return Held(local, total)
