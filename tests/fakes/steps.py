"""An in-memory StepModel whose every token depends on the whole history of its row.

A row that is moved, swapped or batched wrongly gives other tokens, so a batcher's bookkeeping shows
in the answers. `expected` is what one request alone would get.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from runtime.ort.steps import BLOCK_TOKENS, SITS_OUT, Logits, ModelBroken

VOCABULARY = 61


def next_token(history: Sequence[int]) -> int:
    """The token after `history`; never 0, which tests use as the end token."""
    state = 7
    for position, token in enumerate(history):
        state = (state * 31 + token * (position + 3)) % 100_003
    return 1 + state % (VOCABULARY - 1)


def expected(prompt: Sequence[int], count: int) -> list[int]:
    """The greedy answer to `prompt`."""
    history = list(prompt)
    for _ in range(count):
        history.append(next_token(history))
    return history[len(prompt) :]


@dataclass
class FakeSteps:
    """`slots` rows; a decode step takes `step_s`. Breaks at decode step `break_at`, or at prefill `break_at_prefill`.

    A history that holds `poison` gives logits that are no numbers; a prefill of `trip` fails, and breaks nothing.
    """

    slots: int = 4
    capacity: int = 256
    step_s: float = 0.0
    break_at: int | None = None
    break_at_prefill: int | None = None
    poison: int | None = None
    trip: int | None = None
    vocab_size: int = VOCABULARY
    prefill_chunk: int = 4
    prefix_blocks: int = 0
    score_chunk: int = 3
    probabilities: Logits | None = None
    prefill_s: float = 0.0  # per token
    pass_s: float | None = None  # of a prefill, however few tokens it takes; None: as a decode step
    pass_growth_s: float = 0.0  # of a prefill, per token before it
    copy_s: float = 0.0  # per token moved, restored or kept
    give_back_s: float = 0.0  # per position of a row, and per token of a block
    kv_bytes: int = 1  # that a model of these says to take per token
    virtual: bool = False  # time passes on `clock` alone
    now: float = 0.0

    rows: list[list[int]] = field(default_factory=list)
    decode_batches: list[int] = field(default_factory=list)  # rows that decoded in each step
    spans: list[int] = field(default_factory=list)  # those that sat out in between included
    prefill_chunks: list[int] = field(default_factory=list)
    scored: list[int] = field(default_factory=list)  # tokens of each pass
    log: list[str] = field(default_factory=list)
    kept: dict[int, list[int]] = field(default_factory=dict)
    touched: list[int] = field(default_factory=list)  # how far each row takes memory

    def __post_init__(self) -> None:
        self.rows = [[] for _ in range(self.slots)]
        self.touched = [0] * self.slots

    def prefill(self, row: int, token_ids: Sequence[int], start: int) -> Logits:
        if self.break_at_prefill is not None and len(self.prefill_chunks) + 1 >= self.break_at_prefill:
            raise ModelBroken("broken on order")
        if self.trip in token_ids:
            raise ValueError("tripped on order")
        del self.rows[row][start:]
        assert len(self.rows[row]) == start, "a chunk must continue where the last one ended"
        self.rows[row].extend(token_ids)
        self.prefill_chunks.append(len(token_ids))
        self.log.append("prefill")
        self._touch()
        self._spend((self.step_s if self.pass_s is None else self.pass_s) + self.pass_growth_s * start)
        self._spend(self.prefill_s * len(token_ids))
        return self._logits([row])[0]

    def score(self, row: int, token_ids: Sequence[int], start: int) -> Logits:
        assert 0 < len(token_ids) <= self.score_chunk
        self.scored.append(len(token_ids))
        return np.stack([self.prefill(row, [token], start + at).copy() for at, token in enumerate(token_ids)])

    def decode(self, tokens: Sequence[int], lengths: Sequence[int]) -> Logits:
        self.decode_batches.append(sum(length != SITS_OUT for length in lengths))
        self.spans.append(len(lengths))
        self.log.append("decode")
        if self.break_at is not None and len(self.decode_batches) >= self.break_at:
            raise ModelBroken("broken on order")
        for row, (token, length) in enumerate(zip(tokens, lengths, strict=True)):
            if length == SITS_OUT:
                self.touched[row] = max(self.touched[row], 1)
                continue
            del self.rows[row][length:]
            assert len(self.rows[row]) == length, f"row {row} holds {len(self.rows[row])} tokens, not {length}"
            assert length < self.capacity
            self.rows[row].append(token)
        self._touch()
        self._spend(self.step_s)
        return self._logits(range(len(tokens)))

    def move(self, source: int, target: int, start: int, end: int) -> None:
        assert source != target
        assert 0 <= start <= end <= len(self.rows[source])
        assert len(self.rows[target]) >= start, "a slice must continue where the last one ended"
        self.rows[target][start:] = self.rows[source][start:end]
        self._copied("move", end - start)

    def give_back(self, row: int, start: int) -> None:
        del self.rows[row][start:]
        self._spend(self.give_back_s * max(self.touched[row] - start, 0))
        self.touched[row] = min(self.touched[row], start)

    def keep(self, row: int, start: int, block: int) -> None:
        assert 0 <= block < self.prefix_blocks
        assert len(self.rows[row]) >= start + BLOCK_TOKENS, "only whole blocks are kept"
        self.kept[block] = self.rows[row][start : start + BLOCK_TOKENS]
        self._copied("keep", BLOCK_TOKENS)

    def restore(self, block: int, row: int, start: int) -> None:
        del self.rows[row][start:]
        assert len(self.rows[row]) == start, "a block must continue where the last one ended"
        self.rows[row].extend(self.kept[block])
        self._copied("restore", BLOCK_TOKENS)

    def forget(self, first: int, end: int) -> None:
        for block in range(first, end):
            if self.kept.pop(block, None) is not None:
                self._spend(self.give_back_s * BLOCK_TOKENS)

    def clock(self) -> float:
        return self.now if self.virtual else time.monotonic()

    def _spend(self, seconds: float) -> None:
        self.now += seconds
        if not self.virtual:
            time.sleep(seconds)

    def _copied(self, what: str, tokens: int) -> None:
        self.log.append(what)
        self._touch()
        self._spend(self.copy_s * tokens)

    def _touch(self) -> None:
        self.touched = [max(far, len(row)) for far, row in zip(self.touched, self.rows, strict=True)]

    def _logits(self, rows: Sequence[int]) -> Logits:
        logits = np.zeros((len(rows), self.vocab_size), np.float32)
        for index, row in enumerate(rows):
            logits[index, next_token(self.rows[row])] = 9.0
            if self.poison in self.rows[row]:
                logits[index] = np.nan
        return logits
