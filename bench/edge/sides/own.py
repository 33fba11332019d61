"""Weir's own engine as a measured side: its steps as the batcher takes them, and the whole engine without a network.

Steps include the choice of every token with its confidence signals, as in service. The engine is
`edge.engine.service` called in its own process: tokenizing, admission, batching and text are in it,
gRPC, HTTP and the cascade are not.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.edge.plan import STAGES
from bench.edge.sides.answering import answer
from edge.engine.config import EngineConfig
from edge.engine.service import EngineService
from release.folder import open_release
from router.confidence import Signals
from runtime.child import die_with_parent
from runtime.ort.load import load_model
from runtime.ort.sampling import Sampler, SamplingParams
from runtime.version import weir_version
from wire.deadline import Deadline
from wire.messages import Committed, Delta, Final, GenerateRequest, Message, Sampling
from wire.service import Call

_Answer = Mapping[str, Any]
_DEADLINE_S = 300.0


class Steps:
    """One release at one precision, driven step by step."""

    def load(self, release: str, precision: int, slots: int, capacity: int, threads: int) -> _Answer:
        """Loads it as an engine does."""
        opened = open_release(Path(release))
        self._model = load_model(opened, precision, slots=slots, capacity=capacity, threads=threads).steps
        self._samplers = [Sampler(SamplingParams(), self._model.vocab_size) for _ in range(slots)]
        return {"versions": {"weir": weir_version()}}

    def prefill(self, ids: Sequence[int]) -> _Answer:
        """Seconds from a prompt to the logits after it."""
        began = time.perf_counter()
        self._prefilled(ids)
        return {"s": time.perf_counter() - began}

    def decode(self, ids: Sequence[int], batch: int, tokens: int) -> _Answer:
        """Seconds of each decode step, greedy, the choice of tokens and their signals included."""
        first, lengths = self._begun(ids, batch)
        last, signals, taken = [first] * batch, [Signals()] * batch, []
        for _ in range(tokens):
            began = time.perf_counter()
            logits = self._model.decode(last, lengths)
            for row in range(batch):
                choice = self._samplers[row].choose(logits[row], probabilities=self._model.probabilities[row])
                signals[row] = signals[row].then(choice.logprob, choice.entropy, choice.margin)
                last[row], lengths[row] = choice.token, lengths[row] + 1
            taken.append(time.perf_counter() - began)
        return {"step_s": taken}

    def signals(self, ids: Sequence[int], batch: int, tokens: int) -> _Answer:
        """Seconds of steps that choose tokens with signals, of that choosing, and of an argmax in its place.

        Steps do one and the other in turn: what comes second finds the logits in the cache, and is cheaper for it.
        """
        first, lengths = self._begun(ids, batch)
        last, signals = [first] * batch, [Signals()] * batch
        whole, choosing, plain = list[float](), list[float](), list[float]()
        for number in range(2 * tokens):
            began = time.perf_counter()
            logits = self._model.decode(last, lengths)
            decoded = time.perf_counter()
            for row in range(batch):
                if number % 2:
                    last[row] = int(logits[row].argmax())
                else:
                    choice = self._samplers[row].choose(logits[row], probabilities=self._model.probabilities[row])
                    signals[row] = signals[row].then(choice.logprob, choice.entropy, choice.margin)
                    last[row] = choice.token
                lengths[row] = len(ids) + number % tokens + 1
            ended = time.perf_counter()
            (plain if number % 2 else choosing).append(ended - decoded)
            if not number % 2:
                whole.append(ended - began)
        return {"step_s": whole, "choose_s": choosing, "argmax_s": plain}

    def _prefilled(self, ids: Sequence[int]) -> int:
        chunk = self._model.prefill_chunk
        for start in range(0, len(ids), chunk):
            logits = self._model.prefill(0, ids[start : start + chunk], start)
        return int(logits.argmax())

    def _begun(self, ids: Sequence[int], batch: int) -> tuple[int, list[int]]:
        first = self._prefilled(ids)
        for row in range(1, batch):
            self._model.move(0, row, 0, len(ids))
        return first, [len(ids)] * batch


class Engine:
    """The engine process's service, without its process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def engine_load(self, release: str, settings: Mapping[str, Any]) -> _Answer:
        """Loads it; `settings` are EngineConfig's."""
        config = EngineConfig(socket=Path("/nowhere"), release_dir=Path(release), **settings)
        self._loop.run_until_complete(self._load(config))
        return {}

    async def _load(self, config: EngineConfig) -> None:
        self._service = EngineService(config, broken=lambda _why: None)
        await self._service.load()

    def answers(self, prompts: Sequence[str], tokens: int) -> _Answer:
        """All prompts at once: of each answer the seconds to its first token and its end, its tokens, its stages."""
        return {"answers": self._loop.run_until_complete(self._answers(prompts, tokens))}

    async def _answers(self, prompts: Sequence[str], tokens: int) -> list[dict[str, Any]]:
        return list(await asyncio.gather(*(self._answer(prompt, tokens) for prompt in prompts)))

    async def _answer(self, prompt: str, tokens: int) -> dict[str, Any]:
        request = GenerateRequest(
            messages=(Message("user", prompt),), sampling=Sampling(max_tokens=tokens, temperature=0.0)
        )
        call = Call(Deadline.after(_DEADLINE_S))
        began, first, count = time.perf_counter(), None, 0
        stages: dict[str, float] = {}
        async with aclosing(self._service.generate(request, call)) as events:
            async for event in events:
                if isinstance(event, Committed | Delta) and first is None:
                    first = time.perf_counter() - began
                elif isinstance(event, Final):
                    count = event.usage.completion_tokens
                    stages = {stage: event.timings_ms[stage] for stage in STAGES}
        total_s = time.perf_counter() - began
        return {"first_s": first, "total_s": total_s, "tokens": count, "stages_ms": stages}


def bandwidth(megabytes: int, trials: int, threads: int = 1) -> _Answer:
    """Bytes a second that so many threads read of memory no cache holds: the best of `trials`, by two ways."""
    import ctypes

    library = ctypes.CDLL(None)
    library.memchr.restype = ctypes.c_void_p
    library.memchr.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    parts = [np.ones((megabytes << 18) // threads, np.float32) for _ in range(threads)]
    absent, taken = 0xFF, list[float]()
    ways: tuple[Callable[[npt.NDArray[np.float32]], object], ...] = (
        lambda part: library.memchr(part.ctypes.data, absent, part.nbytes),
        lambda part: part.dot(part),
    )
    with ThreadPoolExecutor(threads) as pool:  # both ways leave the interpreter alone while they read
        for _ in range(trials):
            for way in ways:
                began = time.perf_counter()
                list(pool.map(way, parts))
                taken.append(time.perf_counter() - began)
    return {"bytes_per_s": sum(part.nbytes for part in parts) / min(taken)}


def main() -> None:
    """Answers on stdin and stdout."""
    die_with_parent()
    steps, engine = Steps(), Engine()
    answer(
        {
            "load": steps.load,
            "prefill": steps.prefill,
            "decode": steps.decode,
            "signals": steps.signals,
            "engine_load": engine.engine_load,
            "answers": engine.answers,
            "bandwidth": bandwidth,
        }
    )
