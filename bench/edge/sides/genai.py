"""onnxruntime-genai as a measured side: its own graph, its own loop.

Imports the standard library, numpy and onnxruntime_genai alone: it may run under another interpreter.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bench.edge.sides.answering import answer

_Answer = Mapping[str, Any]


class Genai:
    """One model. Batches are of equal prompts, as its generator takes no others without padding."""

    def load(self, folder: str, threads: int) -> _Answer:
        """Loads a folder that genai's model builder made."""
        import onnxruntime_genai

        self._library = onnxruntime_genai
        config = onnxruntime_genai.Config(folder)
        options = {"intra_op_num_threads": threads}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        self._model = onnxruntime_genai.Model(config)
        return {"versions": {"onnxruntime-genai": onnxruntime_genai.__version__}}

    def prefill(self, ids: Sequence[int]) -> _Answer:
        """Seconds from a prompt to the logits after it."""
        generator = self._generator(ids, 1, 1)
        began = time.perf_counter()
        self._append(generator, ids, 1)
        generator.get_logits()
        return {"s": time.perf_counter() - began}

    def decode(self, ids: Sequence[int], batch: int, tokens: int) -> _Answer:
        """Seconds of each decode step, greedy, its choice of token included."""
        generator = self._generator(ids, batch, tokens)
        self._append(generator, ids, batch)
        taken: list[float] = []
        generator.generate_next_token()  # chosen from the prompt's logits: no step of its own
        while len(taken) < tokens and not generator.is_done():
            began = time.perf_counter()
            generator.generate_next_token()
            taken.append(time.perf_counter() - began)
        return {"step_s": taken}

    def _generator(self, ids: Sequence[int], batch: int, tokens: int) -> Any:
        params = self._library.GeneratorParams(self._model)
        params.set_search_options(max_length=len(ids) + tokens + 2, do_sample=False, batch_size=batch)
        return self._library.Generator(self._model, params)

    @staticmethod
    def _append(generator: Any, ids: Sequence[int], batch: int) -> None:
        import numpy as np

        generator.append_tokens(np.tile(np.asarray(ids, np.int32), (batch, 1)))


def main() -> None:
    """Answers on stdin and stdout."""
    side = Genai()
    answer({"load": side.load, "prefill": side.prefill, "decode": side.decode})
