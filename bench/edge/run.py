"""`weir bench edge`: Weir's engine against its peers, and the node against its own engine, in one run.

    engines     steps in processes of their own: ours, onnxruntime-genai's, llama.cpp's; measured in turn
    node_parts  a running node against the bare engine: overhead, streams, a long prompt, a prefix, first tokens
    soak        many clients that come and go

The weights of all sides have blocks of 32 and something like a zero point: ours, genai's (its builder's, told so),
llama.cpp's Q4_1. What genai does without zero points, which on some CPUs is faster and costs quality, is a figure
of its own. Prompts, lengths and threads are the same. Keys whose part or peer was left out are null, and `skipped`
says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from bench.edge import engines, node_parts
from bench.edge.asking import prompts_of
from bench.edge.plan import PARTS, Plan
from bench.edge.soak import soak
from bench.machine import machine, versions
from quantize.progress import Progress
from release.listing import read_manifest
from runtime.tokenizer import Tokenizer

KEYS = (
    "decode_vs_genai",
    "decode_vs_llamacpp",
    "prefill_vs_llamacpp",
    "batch8_vs_genai_batch1",
    "overhead_ms",
    "overhead_16_streams",
    "gap_ratio_long_prompt",
    "prefix_ttft_gain",
)
_STEPS = {"decode", "prefill", "batch8", "signals", "bandwidth"}
_PACKAGES = ("onnxruntime", "numpy", "grpcio", "tokenizers")


def measure(plan: Plan, progress: Progress, told: Callable[[str], None] = lambda _what: None) -> dict[str, Any]:
    """Everything as one JSON object. Raises SideFailed, NodeFailed, WeirError where our own side fails."""
    before, tokenizer = machine(), Tokenizer.load(plan.release)
    found: dict[str, Any] = dict.fromkeys(KEYS)
    skipped = {part: "not asked for (--only)" for part in PARTS if part not in plan.only}
    used = versions(_PACKAGES)
    if _STEPS & set(plan.only):
        ids = tokenizer.encode(prompts_of(tokenizer, plan.prompt_tokens, 1, plan.seed)[0])
        with ExitStack() as stack:
            sides = engines.started(plan, stack, progress)
            found |= engines.measure(plan, ids, sides, progress)
        skipped |= sides.skipped
        used |= sides.versions
        if sides.features:
            found["llamacpp_features"] = sides.features
    found |= asyncio.run(node_parts.measure(plan, tokenizer, told))
    if plan.soak_s:
        told(f"{plan.soak_clients} clients for {plan.soak_s:.0f} s")
        found |= asyncio.run(soak(plan, tokenizer))
    return {
        **found,
        "rounds": plan.rounds,
        "skipped": skipped,
        "plan": {**asdict(plan), "release": read_manifest(plan.release).id},
        "versions": used,
        "machine": before,
    }
