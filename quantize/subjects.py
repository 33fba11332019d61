"""What quality is measured on: models that give logits, whatever runs them.

`LanguageModel` walks one sequence at a time and keeps what it has seen of it, so that nobody ever holds
the logits of more than one chunk. `Classifier` reads one text. The source by transformers and a release
by the runtime it is served with are both of them; a test can hand in arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from quantize.errors import QuantizeError
from quantize.levels import at_level
from release.folder import Release
from release.planes import Floats
from runtime.ort.rows import RowPool
from runtime.ort.session import OrtSession, bind_input, bind_output


class LanguageModel(Protocol):
    """A causal model over token ids."""

    def logits(self, token_ids: Sequence[int], start: int) -> Floats:
        """Logits [n, V] after each of `token_ids`, at positions start, start+1, … of the running sequence.

        `start` 0 begins another sequence. The array is valid until the next call.
        """
        ...


class Classifier(Protocol):
    """A model that gives every text one of its labels."""

    @property
    def labels(self) -> Sequence[str]: ...

    def logits(self, text: str) -> Floats:
        """One logit per label, in the order of `labels`."""
        ...


class Classifiers(Protocol):
    """Opens the two sides of a classifier's measurement."""

    def source(self, folder: Path, threads: int) -> Classifier:
        """The float32 model that the release was built from."""
        ...

    def release(self, release: Release, precision: int, level: int | None, threads: int) -> Classifier:
        """The release at one precision; `level` replaces the accuracy level its graph names."""
        ...


class SourceModelInFloat:
    """A model folder by transformers, in float32."""

    def __init__(self, folder: Path, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()  # whoever calls shows the progress
        torch.set_num_threads(threads)
        try:
            self._model: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, local_files_only=True
            ).eval()
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise QuantizeError(
                f"{folder} cannot be loaded in float32 to compare the release with it ({error}); "
                "--no-evaluate builds without figures"
            ) from error
        self._cache: Any = None

    def logits(self, token_ids: Sequence[int], start: int) -> Floats:
        """See LanguageModel."""
        import torch
        from transformers import DynamicCache

        if start == 0:
            self._cache = DynamicCache(config=self._model.config)
        with torch.inference_mode():
            out = self._model(torch.tensor([list(token_ids)]), cache=self._cache, use_cache=True)
        found: Floats = out.logits[0].numpy()
        return found


class ServedModel:
    """A session over a graph whose count of wanted logits is open; one sequence of at most `capacity` tokens."""

    def __init__(self, session: OrtSession, capacity: int, chunk: int) -> None:
        wanted = {entry.name: entry.shape for entry in session.run.get_inputs()}["logits_idx"]
        if wanted[1] == 1:
            raise QuantizeError("this release gives one row of logits at a time: build it anew to measure it")
        self._session, self._pool = session, RowPool(session.row_shape, 1, capacity)
        self._tokens = np.zeros((1, chunk), np.int64)
        self._seqlens, self._total = np.zeros(1, np.int32), np.array(0, np.int32)
        self._index = np.arange(chunk, dtype=np.int64).reshape(1, chunk, 1)
        self._logits = np.zeros((1, chunk, session.vocab_size), np.float32)

    def logits(self, token_ids: Sequence[int], start: int) -> Floats:
        """See LanguageModel."""
        count = len(token_ids)
        self._tokens[0, :count] = token_ids
        self._seqlens[0], self._total[...] = start + count - 1, start + count
        binding = self._session.run.io_binding()
        bind_input(binding, "input_ids", self._tokens[:, :count])
        bind_input(binding, "seqlens_k", self._seqlens)
        bind_input(binding, "total_seq", self._total)
        bind_input(binding, "logits_idx", self._index[:, :count])
        for name, array in self._pool.arrays.items():
            bind_input(binding, f"past_key_values.{name}", array)
            bind_output(binding, f"present.{name}", array)
        bind_output(binding, "logits", self._logits[:, :count])
        self._session.run.run_with_iobinding(binding)
        rows: Floats = self._logits[0, :count]
        return rows


def served(
    release: Release, precision: int, *, capacity: int, chunk: int, threads: int, level: int | None = None
) -> ServedModel:
    """A release at one precision; `level` replaces the accuracy level its graph names."""
    graph = release.graph(precision)
    graph = graph if level is None else at_level(graph, level)
    return ServedModel(OrtSession(graph, release.initializers(precision), threads), capacity, chunk)
