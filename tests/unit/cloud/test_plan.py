"""Which models run on how many ranks: sharded, attention replicated, or refused with the reason."""

from __future__ import annotations

import pytest

from cloud.config import WeightPrecision
from cloud.engine import TRANSFORMERS
from cloud.rank.plan import PlanRefused, ShardingPlan, check_devices, plan_sharding

FP32, BF16 = WeightPrecision.FLOAT32, WeightPrecision.BFLOAT16


def config(heads: int, kv_heads: int) -> dict[str, object]:
    return {
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "num_hidden_layers": 2,
        "intermediate_size": 96,
    }


def test_heads_that_divide_are_sharded_by_the_models_own_plan() -> None:
    assert plan_sharding(config(14, 2), BF16, 2, TRANSFORMERS) == ShardingPlan(2)


def test_heads_that_do_not_divide_are_replicated_and_the_numbers_are_named() -> None:
    plan = plan_sharding(config(9, 3), FP32, 2, TRANSFORMERS)
    assert set(plan.overrides.values()) == {"replicate"}
    assert {name.rsplit(".", 1)[1] for name in plan.overrides} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert "9 attention heads and 3 key/value heads do not divide by 2 ranks" in plan.note
    assert "over 3" in plan.note


def test_few_key_value_heads_count_as_well() -> None:
    assert plan_sharding(config(14, 2), FP32, 7, TRANSFORMERS).overrides


@pytest.mark.parametrize("precision", [WeightPrecision.INT8, WeightPrecision.NF4])
def test_packed_widths_run_on_one_rank_only_and_say_what_works(precision: WeightPrecision) -> None:
    assert plan_sharding(config(4, 2), precision, 1, TRANSFORMERS) == ShardingPlan(1)
    with pytest.raises(PlanRefused, match=f"{precision} weights.*tensor_parallel_size = 1.*float32 or bfloat16"):
        plan_sharding(config(4, 2), precision, 2, TRANSFORMERS)


def test_a_model_that_names_no_heads_is_refused() -> None:
    with pytest.raises(PlanRefused, match="num_attention_heads"):
        plan_sharding({"model_type": "mamba", "num_hidden_layers": 2}, FP32, 2, TRANSFORMERS)


def test_more_ranks_than_the_model_is_wide_are_refused() -> None:
    with pytest.raises(PlanRefused, match="97 ranks"):
        plan_sharding(config(4, 2), FP32, 97, TRANSFORMERS)


def test_ranks_want_a_gpu_each_or_none_at_all() -> None:
    check_devices(2, 0)
    check_devices(2, 2)
    with pytest.raises(PlanRefused, match="needs 2 GPUs and this machine shows 1"):
        check_devices(2, 1)
