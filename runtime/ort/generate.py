"""One sequence from prompt to end, without a batcher: for calibration, checks and examples."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from runtime.ort.sampling import Choice, Sampler, SamplingParams
from runtime.ort.steps import Logits, StepModel


def prefill(model: StepModel, row: int, prompt_ids: Sequence[int], chunk: int | None = None) -> Logits:
    """Logits [V] after the whole prompt, taken in chunks, as long as the model takes them unless told otherwise."""
    if not prompt_ids:
        raise ValueError("the prompt has no tokens")
    chunk = chunk or model.prefill_chunk
    for start in range(0, len(prompt_ids), chunk):
        logits = model.prefill(row, prompt_ids[start : start + chunk], start)
    return logits


def generate(
    model: StepModel,
    prompt_ids: Sequence[int],
    max_tokens: int,
    stop_ids: Collection[int] = (),
    sampling: SamplingParams | None = None,
) -> Iterator[Choice]:
    """Chosen tokens, one by one, ending before a stop token, after `max_tokens` or at a full row.

    Uses row 0 of `model`, which nobody else may use meanwhile.
    """
    sampler = Sampler(sampling or SamplingParams(), model.vocab_size)
    length = len(prompt_ids)
    if length >= model.capacity:
        raise ValueError(f"the prompt has {length} tokens; this model takes fewer than {model.capacity}")
    choice = sampler.choose(prefill(model, 0, prompt_ids), probabilities=_told(model))
    for produced in range(1, max_tokens + 1):
        if choice.token in stop_ids:
            return
        yield choice
        if produced == max_tokens or length >= model.capacity:
            return
        logits = model.decode([choice.token], [length])[0]
        choice = sampler.choose(logits, probabilities=_told(model))
        length += 1


def _told(model: StepModel) -> Logits | None:
    return None if model.probabilities is None else model.probabilities[0]
