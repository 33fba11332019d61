"""The real SmolLM2 by way of an edge, a gateway and two ranks. Its 9 heads do not divide: attention is replicated."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from quantize.sources.resolve import resolve
from tests.integration.cloud_process import Client, ask, engine_host, free_port, running, soon
from tests.integration.edge_process import calibrated_release, edge_process
from tests.releases import SMOLLM2_FOLDER
from wire.grpc_client import EngineControlClient, InferenceClient

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(600)]

TOKENS = 16
UNSURE = -1.0
QUESTIONS = ("What is the capital of France?", "Say hello in Spanish.", "Name a colour of the rainbow.")


def one_process(folder: Path) -> list[list[int]]:
    """Greedy answers of the same weights in this process, without ranks and without batching."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    answers = []
    for question in QUESTIONS:
        chat = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True, return_tensors="pt")
        with torch.inference_mode():
            whole = model.generate(**prompt, max_new_tokens=TOKENS, do_sample=False)
        answers.append(whole[0, prompt["input_ids"].shape[1] :].tolist())
    return answers


def through_an_edge(release: Path, folder: Path, upstream: str) -> dict[str, Any]:
    """The answer to the first question of a node that is never sure, in OpenAI's shape."""
    calibrated_release(release, folder, "1.0.0", UNSURE)
    body = {"model": "", "messages": [{"role": "user", "content": QUESTIONS[0]}], "max_tokens": TOKENS}
    with edge_process(folder, upstream=upstream, precision="4") as node:
        answer = httpx.post(f"{node.http}/v1/chat/completions", json=body, timeout=60, trust_env=False)
    return dict(answer.json())


async def test_two_ranks_answer_as_one_process_does_also_through_an_edge(tmp_path: Path, smollm2_release: Path) -> None:
    folder = Path(os.environ.get(SMOLLM2_FOLDER, "") or resolve("smollm2-135m-instruct").folder)
    address = f"127.0.0.1:{free_port()}"
    host_settings = {"name": "smollm2", "tensor_parallel_size": 2, "context_length": 256, "max_output_tokens": 64}
    with engine_host(folder, tmp_path / "host", **host_settings) as host:
        settings = {"engines": host.address, "address": address, "http_address": f"127.0.0.1:{free_port()}"}
        with running("cloud.gateway", "GATEWAY", settings, tmp_path / "gateway.log"):
            expected = one_process(folder)
            async with host.client() as engine:
                ranks = (await engine.status()).ranks
            client = Client(InferenceClient(address), EngineControlClient(address))
            try:
                async with asyncio.timeout(60):
                    while not (await client.inference.describe(soon(60))).ready:
                        await asyncio.sleep(0.1)
                answers = [
                    await client.answer(ask(question, tokens=TOKENS, return_logprobs=True, hops=1, model="edge"), 120)
                    for question in QUESTIONS
                ]
                escalated = await asyncio.to_thread(through_an_edge, smollm2_release, tmp_path / "release", address)
            finally:
                await client.inference.close()
                await client.control.close()
    for answer, tokens in zip(answers, expected, strict=True):
        assert answer.token_ids == tokens[: len(answer.token_ids)]
        assert answer.final.usage.completion_tokens == len(tokens)
    assert "Paris" in answers[0].text
    assert answers[0].final.timings_ms["gateway_total"] > 0
    assert all(rank.parameter_bytes <= 0.65 * rank.parameter_bytes_total for rank in ranks)
    assert "9 attention heads and 3 key/value heads do not divide by 2 ranks" in host.log.read_text()
    # The edge's own words went along, since both speak the same tokens; the cloud says that it has no use for them.
    weir = escalated["weir"]
    assert escalated["choices"][0]["message"]["content"] == answers[0].text
    assert (weir["tier"], weir["reason"], weir["degraded"]) == ("cloud", "low_confidence", False)
    assert (weir["draft"]["status"], weir["draft"]["accepted"]) == ("unsupported", 0)
    assert weir["draft"]["offered"] > 0
    assert {"edge_prefill", "edge_decode", "upstream_first", "gateway_queue", "engine_decode"} <= set(
        weir["timings_ms"]
    )
