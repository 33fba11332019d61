"""llama.cpp as a measured side, through llama-cpp-python's plain bindings.

Imports the standard library, numpy and llama_cpp alone: it runs in an environment of its own.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bench.edge.sides.answering import answer

_Answer = Mapping[str, Any]


class LlamaFailed(Exception):
    """llama.cpp refused a model or a batch."""


class Llama:
    """One model with one context for up to `slots` sequences."""

    def load(self, file: str, threads: int, slots: int, capacity: int) -> _Answer:
        """Loads a GGUF; `capacity` positions for each of `slots` sequences."""
        self._library = llama_cpp = importlib.import_module("llama_cpp")
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_load_from_file(file.encode(), llama_cpp.llama_model_default_params())
        if not model:
            raise LlamaFailed(f"{file} cannot be loaded")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_seq_max = capacity * slots, capacity, slots
        params.n_threads = params.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(model, params)
        if not self._context:
            raise LlamaFailed("no context could be made")
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._batch = llama_cpp.llama_batch_init(capacity, 0, slots)
        self._memory = llama_cpp.llama_get_memory(self._context)
        features = llama_cpp.llama_print_system_info().decode()
        return {"versions": {"llama-cpp-python": llama_cpp.__version__}, "features": features}

    def prefill(self, ids: Sequence[int]) -> _Answer:
        """Seconds from a prompt to the logits after it."""
        self._library.llama_memory_clear(self._memory, True)
        began = time.perf_counter()
        self._step([(token, place, 0) for place, token in enumerate(ids)], wanted=1)
        return {"s": time.perf_counter() - began}

    def decode(self, ids: Sequence[int], batch: int, tokens: int) -> _Answer:
        """Seconds of each decode step, greedy, its choice of token included."""
        self._library.llama_memory_clear(self._memory, True)
        last: list[int] = []
        for row in range(batch):
            last += self._step([(token, place, row) for place, token in enumerate(ids)], wanted=1)
        taken = []
        for length in range(len(ids), len(ids) + tokens):
            began = time.perf_counter()
            last = self._step([(token, length, row) for row, token in enumerate(last)], wanted=batch)
            taken.append(time.perf_counter() - began)
        return {"step_s": taken}

    def _step(self, entries: Sequence[tuple[int, int, int]], wanted: int) -> list[int]:
        """One forward pass over (token, position, sequence); the likeliest tokens after the last `wanted` of them."""
        import numpy as np

        given, count = self._batch, len(entries)
        given.n_tokens = count
        for place, (token, position, sequence) in enumerate(entries):
            given.token[place], given.pos[place] = token, position
            given.n_seq_id[place], given.seq_id[place][0] = 1, sequence
            given.logits[place] = place >= count - wanted
        if self._library.llama_decode(self._context, given) != 0:
            raise LlamaFailed(f"a batch of {count} tokens was refused")
        found = []
        for place in range(count - wanted, count):
            logits = self._library.llama_get_logits_ith(self._context, place)
            found.append(int(np.ctypeslib.as_array(logits, shape=(self._vocabulary,)).argmax()))
        return found


def main() -> None:
    """Answers on stdin and stdout."""
    side = Llama()
    answer({"load": side.load, "prefill": side.prefill, "decode": side.decode})
