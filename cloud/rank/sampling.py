"""Chooses tokens per request: greedy and sampled rows side by side in one batch, on every rank alike.

transformers' batch runner samples a whole batch one way and reports log-probs of the distorted
distribution. Here each row has its own temperature, top-k, top-p and seed, and a log-prob always is of
the distribution as the model gave it. A seed gives the same uniforms at the same positions whatever
else is in the batch. In a group rank 0's tokens are everyone's: ranks never drift apart.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessorList
from transformers.generation.continuous_batching.model_runner import ModelRunner
from transformers.generation.logits_process import LogitsProcessorList


class RequestSettings(ContinuousBatchingLogitsProcessorList):  # type: ignore[misc]
    """No processors at all: lets each request's settings travel with it to every rank."""

    def __init__(self) -> None:
        super().__init__(LogitsProcessorList())

    def check_kwargs(self, kwargs: dict[str, Any]) -> None:
        """Settings were checked before they came here (wire.validate)."""


def draw(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, uniform: float) -> int:
    """One token id from a row of logits [vocabulary], by the inverse of its cumulative distribution.

    Top-k first, then top-p over what is left, as the usual order is. `uniform` lies in [0, 1).
    """
    scaled = logits.float() / temperature
    if top_k:
        scaled, ids = torch.topk(scaled, min(top_k, scaled.shape[-1]))
    elif top_p < 1:
        scaled, ids = torch.sort(scaled, descending=True)
    else:
        ids = None
    mass = torch.softmax(scaled, dim=-1).cumsum(dim=-1)
    end = len(mass)
    if top_p < 1:
        end = min(end, int(torch.searchsorted(mass, torch.tensor(top_p, device=mass.device))) + 1)
    target = torch.tensor(uniform * float(mass[end - 1]), device=mass.device, dtype=mass.dtype)
    index = min(int(torch.searchsorted(mass, target, right=True)), end - 1)
    return index if ids is None else int(ids[index])


def uniform_for(seed: int, position: int) -> float:
    """The uniform of one position of one answer."""
    return random.Random(f"{seed}:{position}").random()


def choose(logits: torch.Tensor, rows: Sequence[Mapping[str, Any]], positions: Sequence[int]) -> torch.Tensor:
    """One token id per row of logits [rows, vocabulary]; rows without a temperature are greedy."""
    tokens = torch.argmax(logits, dim=-1)
    for index, (settings, position) in enumerate(zip(rows, positions, strict=True)):
        if settings.get("temperature"):
            uniform = uniform_for(settings["seed"], position)
            tokens[index] = draw(logits[index], settings["temperature"], settings["top_k"], settings["top_p"], uniform)
    return tokens


class SamplingRunner(ModelRunner):  # type: ignore[misc]
    """The batch runner with its sampling step replaced. Stands in for the one the manager made."""

    def __init__(self, processor: Any) -> None:
        super().__init__(
            logit_processor=processor.logit_processor,
            cb_config=processor.cb_config,
            inputs_and_outputs=processor.inputs_and_outputs,
            cache=processor.cache,
            do_sample=False,
            return_logprobs=processor.return_logprobs,
        )
        self._group = processor.distributed_helper

    def _sample(self, scores: torch.Tensor, output_ids: torch.Tensor) -> None:
        """scores [1, rows, vocabulary] float32 → token ids and log-probs into output_ids [2, …]."""
        logits = scores[0]
        states = [entry.state for entry in self.inputs_and_outputs.requests_in_batch if entry.has_new_token]
        rows = [state.logit_processor_kwargs for state in states]
        positions = [state.generated_len() + len(state.initial_tokens) for state in states]
        count = len(states)
        tokens = choose(logits[:count], rows, positions).to(output_ids.dtype)
        tokens = self._group.tp_broadcast_from_rank_0(tokens)
        output_ids[0, :count].copy_(tokens)
        asked = [index for index, settings in enumerate(rows) if settings.get("logprobs")]
        if asked:
            chosen = logits[asked].log_softmax(dim=-1).gather(1, tokens[asked].long()[:, None])[:, 0]
            output_ids[1, asked] = chosen.view(dtype=torch.int32)
