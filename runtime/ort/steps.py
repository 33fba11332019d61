"""What a batcher needs of a model: a pool of rows, prefill into one, a decode step over the first n.

A row holds one sequence's KV cache. Decoding runs over rows 0 … n-1 without holes, so whoever owns
the rows moves one when another ends. Not thread-safe: one thread drives a StepModel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]


class ModelBroken(RuntimeError):
    """The runtime failed inside a step: its state is unknown and the process should be replaced."""


class StepModel(Protocol):
    """A causal language model with `slots` rows of at most `capacity` tokens."""

    @property
    def slots(self) -> int: ...

    @property
    def capacity(self) -> int: ...

    @property
    def prefill_chunk(self) -> int:
        """The most tokens one prefill takes."""
        ...

    @property
    def vocab_size(self) -> int: ...

    def prefill(self, row: int, token_ids: Sequence[int], start: int) -> Logits:
        """Writes `token_ids` at positions start, start+1, … of `row`; logits [V] after the last one.

        The array is valid until the next step. Raises ModelBroken.
        """
        ...

    def decode(self, tokens: Sequence[int], lengths: Sequence[int]) -> Logits:
        """One more token for rows 0 … n-1, whose lengths so far are `lengths`; logits [n, V].

        The array is valid until the next step. Raises ModelBroken.
        """
        ...

    def move(self, source: int, target: int, length: int) -> None:
        """Copies the first `length` positions of one row over another."""
        ...

    def swap(self, first: int, second: int, length: int) -> None:
        """Exchanges the first `length` positions of two rows."""
        ...
