"""What a batcher needs of a model: a pool of rows, prefill into one, a decode step over the first n.

A row holds one sequence's KV cache. A decode step runs over rows 0 … n-1; one in between may sit out, for the price
of a row that decodes, so whoever owns the rows closes them up when he has time. Not thread-safe: one thread drives
a StepModel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]

# A prefix is kept, found and copied in blocks of so many tokens.
BLOCK_TOKENS = 16
SITS_OUT = -1


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

    @property
    def probabilities(self) -> Logits | None:
        """Of the tokens after each row of the last prefill (its own is the first) or decode: [n, V]. None: not told.

        Whoever reads them may write into them. Valid until the next step, or the next score.
        """
        ...

    @property
    def prefix_blocks(self) -> int:
        """Blocks of BLOCK_TOKENS tokens whose KV can be kept aside; 0: none."""
        ...

    def prefill(self, row: int, token_ids: Sequence[int], start: int) -> Logits:
        """Writes `token_ids` at positions start, start+1, … of `row`; logits [V] after the last one.

        The array is valid until the next step. Raises ModelBroken.
        """
        ...

    def decode(self, tokens: Sequence[int], lengths: Sequence[int]) -> Logits:
        """One more token for rows 0 … n-1, whose lengths so far are `lengths`; logits [n, V].

        A row whose length is SITS_OUT keeps what it holds, and its logits mean nothing; it takes memory for a position.
        The array is valid until the next step. Raises ModelBroken.
        """
        ...

    def move(self, source: int, target: int, start: int, end: int) -> None:
        """Copies positions start … end-1 of one row to the same ones of another."""
        ...

    def score(self, row: int, token_ids: Sequence[int], start: int) -> Logits:
        """Like `prefill`, with the logits after every one of `token_ids`: [n, V]; as many as `score_chunk` at most."""
        ...

    @property
    def score_chunk(self) -> int: ...

    def give_back(self, row: int, start: int) -> None:
        """Returns the memory of a row's positions from `start` on; what they held is lost."""
        ...

    def keep(self, row: int, start: int, block: int) -> None:
        """Copies BLOCK_TOKENS positions of a row aside, as block 0 … prefix_blocks-1."""
        ...

    def restore(self, block: int, row: int, start: int) -> None:
        """Copies a kept block to a row's positions start, start+1, …"""
        ...

    def forget(self, first: int, end: int) -> None:
        """Returns the memory of blocks first … end-1; what they held is lost."""
        ...
