"""The cloud model as a reference: what it answers, and how likely it finds a given answer.

Runs a model folder with transformers: in bfloat16 where the CPU multiplies that itself, else in float32.
Items whose prompts begin alike share one forward pass over that beginning; the rest goes in batches,
padded on the left. The prompts are made by the runtime's tokenizer, as in service.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantize.items import CalibrationItem, Message
from runtime.cpu import native_bfloat16
from runtime.text import TextStream
from runtime.tokenizer import Tokenizer

_BATCH = 24
_SCORED_BATCH = 12  # a score needs logits over the vocabulary for every token of an answer


@dataclass(frozen=True, slots=True)
class ReferenceAnswer:
    """An answer of the reference and the mean log-prob per token of its tokens."""

    text: str
    score: float


@dataclass(frozen=True, slots=True)
class _Job:
    index: int
    prompt: list[int]
    answer: list[int]  # given tokens to score; empty when it is to answer
    most: int
    stop: tuple[str, ...]


class Reference:
    """A loaded cloud model. `dtype` is torch's name of one; None takes what suits this CPU."""

    def __init__(
        self, folder: Path, *, threads: int, eos_token_ids: Sequence[int] = (), dtype: str | None = None
    ) -> None:
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()  # whoever calls shows the progress
        torch.set_num_threads(threads)
        self._torch = torch
        self._tokenizer = Tokenizer.load(folder, eos_token_ids)
        chosen = dtype or ("bfloat16" if native_bfloat16() else "float32")
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, chosen), local_files_only=True
        ).eval()

    def answers(
        self, items: Sequence[CalibrationItem], *, told: Callable[[], None], seed: int | None = None
    ) -> list[ReferenceAnswer]:
        """Greedy answers, or with `seed` answers sampled at temperature 1; in the order of `items`."""
        jobs = [
            _Job(index, self._prompt(item.messages), [], item.max_tokens, item.stop) for index, item in enumerate(items)
        ]
        generator = None if seed is None else self._torch.Generator().manual_seed(seed)
        found: dict[int, ReferenceAnswer] = {}
        with self._torch.inference_mode():
            for cache, shared, batch in self._batches(jobs, _BATCH):
                found.update(self._generate(cache, shared, batch, generator))
                for _ in batch:
                    told()
        return [found[index] for index in range(len(items))]

    def scores(
        self, items: Sequence[CalibrationItem], answers: Sequence[str], *, told: Callable[[], None]
    ) -> list[float | None]:
        """Mean log-prob per token of each answer to its item; None for an empty answer."""
        jobs = []
        for index, (item, answer) in enumerate(zip(items, answers, strict=True)):
            tokens = self._tokenizer.encode(answer, special_tokens=False)
            if tokens:
                jobs.append(_Job(index, self._prompt(item.messages), tokens, 0, ()))
        found: dict[int, float] = {}
        with self._torch.inference_mode():
            for cache, shared, batch in self._batches(jobs, _SCORED_BATCH):
                found.update(self._score(cache, shared, batch))
                for _ in batch:
                    told()
        return [found.get(index) for index in range(len(items))]

    def _prompt(self, messages: Sequence[Message]) -> list[int]:
        return self._tokenizer.encode_chat(messages)

    def _batches(self, jobs: Sequence[_Job], size: int) -> Iterator[tuple[Any, int, Sequence[_Job]]]:
        """Batches of jobs whose prompts share their first `shared` tokens, with those in a cache."""
        for group in _alike(jobs):
            shared = min(_shared(group), *(len(job.prompt) - 1 for job in group))
            cache = self._prefix(group[0].prompt[:shared])
            for start in range(0, len(group), size):
                batch = group[start : start + size]
                own = copy.deepcopy(cache)
                if shared:
                    own.batch_repeat_interleave(len(batch))
                yield own, shared, batch

    def _prefix(self, tokens: Sequence[int]) -> Any:
        from transformers import DynamicCache

        cache = DynamicCache(config=self._model.config)
        if tokens:
            self._model(self._torch.tensor([list(tokens)]), cache=cache, use_cache=True, logits_to_keep=1)
        return cache

    def _forward(self, cache: Any, shared: int, rows: Sequence[Sequence[int]], keep: int) -> tuple[Any, Any, Any]:
        """One pass over what follows the shared beginning; logits of the last `keep` positions, mask, lengths."""
        torch = self._torch
        width = max(map(len, rows))
        tokens = torch.zeros(len(rows), width, dtype=torch.long)
        mask = torch.ones(len(rows), shared + width, dtype=torch.long)
        for row, ids in enumerate(rows):
            tokens[row, width - len(ids) :] = torch.tensor(list(ids))
            mask[row, shared : shared + width - len(ids)] = 0
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, shared:]
        out = self._model(
            tokens,
            attention_mask=mask,
            position_ids=positions,
            cache=cache,
            use_cache=True,
            logits_to_keep=keep,
        )
        return out.logits, mask, mask.sum(-1)

    def _generate(
        self, cache: Any, shared: int, batch: Sequence[_Job], generator: Any
    ) -> Iterator[tuple[int, ReferenceAnswer]]:
        torch = self._torch
        logits, mask, lengths = self._forward(cache, shared, [job.prompt[shared:] for job in batch], 1)
        writers = [_Writer(job, self._tokenizer) for job in batch]
        for step in range(max(job.most for job in batch)):
            logprobs = logits[:, -1].float().log_softmax(-1)
            if generator is None:
                tokens = logprobs.argmax(-1)
            else:
                tokens = torch.multinomial(logprobs.exp(), 1, generator=generator)[:, 0]
            chosen = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
            for writer, token, logprob in zip(writers, tokens.tolist(), chosen, strict=True):
                writer.take(token, logprob)
            if all(writer.done for writer in writers):
                break
            mask = torch.cat([mask, torch.ones(len(batch), 1, dtype=torch.long)], 1)
            logits = self._model(
                tokens[:, None],
                attention_mask=mask,
                position_ids=(lengths + step)[:, None],
                cache=cache,
                use_cache=True,
            ).logits
        for writer in writers:
            yield writer.job.index, writer.answer()

    def _score(self, cache: Any, shared: int, batch: Sequence[_Job]) -> Iterator[tuple[int, float]]:
        most = max(len(job.answer) for job in batch)
        rows = [job.prompt[shared:] + job.answer for job in batch]
        logits, _, _ = self._forward(cache, shared, rows, most + 1)
        for row, job in zip(logits, batch, strict=True):
            count = len(job.answer)
            logprobs = row[-count - 1 : -1].float().log_softmax(-1)
            picked = logprobs.gather(1, self._torch.tensor(job.answer)[:, None])
            yield job.index, float(picked.mean())


class _Writer:
    """One answer while it is being written."""

    def __init__(self, job: _Job, tokenizer: Tokenizer) -> None:
        self.job, self.done = job, False
        self._ends, self._stream = tokenizer.stop_ids, TextStream(tokenizer.decode, job.stop)
        self._pieces: list[str] = []
        self._logprobs: list[float] = []

    def take(self, token: int, logprob: float) -> None:
        if self.done:
            return
        if token in self._ends:
            self.done = True
            return
        self._logprobs.append(logprob)
        piece = self._stream.push((token,))
        self._pieces.append(piece.text)
        self.done = piece.stopped or len(self._logprobs) >= self.job.most

    def answer(self) -> ReferenceAnswer:
        text = "".join((*self._pieces, self._stream.finish().text))
        return ReferenceAnswer(text, sum(self._logprobs) / max(len(self._logprobs), 1))


def _alike(jobs: Sequence[_Job], least: int = 16) -> list[list[_Job]]:
    """Jobs in groups whose prompts begin alike: sorted neighbours that share most of the shorter prompt."""
    groups: list[list[_Job]] = []
    for job in sorted(jobs, key=lambda job: job.prompt):
        if groups and _shared([groups[-1][0], job]) >= max(least, len(groups[-1][0].prompt) // 2):
            groups[-1].append(job)
        else:
            groups.append([job])
    return groups


def _shared(jobs: Sequence[_Job]) -> int:
    first, last = min(job.prompt for job in jobs), max(job.prompt for job in jobs)
    return next((index for index, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
