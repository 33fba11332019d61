"""Prompts' KV kept for whoever begins with the same tokens, in blocks, within one tenant and one set of weights.

A block is known by a digest chained over all tokens before it, from a root that names tenant, release and
weights: equal digests mean equal prefixes of one tenant. The least recently used block goes first; as a use
renews a chain from its end to its beginning, a block never outlives what it continues for long.

Bits: a block written by prefill holds what any other prefill of these tokens would hold. Blocks of an
answer are written by decode steps and differ from those in last bits (docs/numerics.md).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from runtime.ort.steps import BLOCK_TOKENS

# So many blocks are copied into a row at once at most, whatever the time: callers that left are looked for in between.
_COPIED_AT_ONCE = 32


def root(*salt: str) -> bytes:
    """Where the chain of a tenant and its weights begins. No two salts give the same root."""
    digest = hashlib.blake2b(digest_size=32)
    for part in salt:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.digest()


def chained(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The digest of a block of tokens after `parent`."""
    return hashlib.blake2b(np.asarray(token_ids, "<i8").tobytes(), key=parent, digest_size=32).digest()


class PrefixIndex:
    """Which digest lies in which of `blocks` places."""

    def __init__(self, blocks: int) -> None:
        self._free = list(range(blocks - 1, -1, -1))
        self._places: OrderedDict[bytes, int] = OrderedDict()  # the least recently used first

    def __len__(self) -> int:
        return len(self._places)

    def find(self, key: bytes) -> int | None:
        return self._places.get(key)

    def renew(self, keys: Sequence[bytes]) -> None:
        """These, a chain from its beginning, were used now."""
        for key in reversed(keys):
            if key in self._places:
                self._places.move_to_end(key)

    def place(self, key: bytes, chain: Sequence[bytes]) -> int | None:
        """A place for a new block of `chain`; None where only the chain's own blocks could make room."""
        if self._free:
            place = self._free.pop()
        else:
            oldest = next(iter(self._places), None)
            if oldest is None or oldest in chain:
                return None
            place = self._places.pop(oldest)
        self._places[key] = place
        return place

    def clear(self) -> None:
        self._free.extend(self._places.values())
        self._places.clear()


class Blocks(Protocol):
    """What of a StepModel keeps blocks."""

    @property
    def prefix_blocks(self) -> int: ...
    def keep(self, row: int, start: int, block: int) -> None: ...
    def restore(self, block: int, row: int, start: int) -> None: ...
    def forget(self, first: int, end: int) -> None: ...


@dataclass(slots=True)
class Trail:
    """One sequence's way along its blocks: the digests of those its row holds, in order."""

    root: bytes
    keys: list[bytes] = field(default_factory=list)
    more: bool = False  # of its prompt is kept than the last `take` had time for

    def next_key(self, token_ids: Sequence[int]) -> bytes:
        start = len(self.keys) * BLOCK_TOKENS
        return chained(self.keys[-1] if self.keys else self.root, token_ids[start : start + BLOCK_TOKENS])


class PrefixCache:
    """The blocks of one model. One thread uses it."""

    def __init__(self, steps: Blocks) -> None:
        self._steps = steps
        self._index = PrefixIndex(steps.prefix_blocks)
        self._open = steps.prefix_blocks > 0
        self._given_back: int | None = None  # blocks, while all are forgotten; nothing is kept meanwhile
        self.hit_tokens = 0

    @property
    def tokens(self) -> int:
        """Tokens whose KV is kept."""
        return len(self._index) * BLOCK_TOKENS

    def take(
        self,
        trail: Trail,
        token_ids: Sequence[int],
        row: int,
        length: int,
        most: int,
        *,
        go_on: Callable[[], bool] = lambda: True,
    ) -> int:
        """Copies what is kept of `token_ids` after the first `length` into `row`; how long the row is then.

        At most `most` tokens are in the row then; nothing is taken in the middle of a block, and no block more once
        `go_on` says no: `trail.more` tells that there was one.
        """
        trail.more = False
        if not self._keeps or length != len(trail.keys) * BLOCK_TOKENS:
            return length
        end = length + _COPIED_AT_ONCE * BLOCK_TOKENS
        while length + BLOCK_TOKENS <= most:
            key = trail.next_key(token_ids)
            block = self._index.find(key)
            if block is None:
                break
            if length >= end or not go_on():
                trail.more = True
                break
            self._steps.restore(block, row, length)
            trail.keys.append(key)
            length += BLOCK_TOKENS
            self.hit_tokens += BLOCK_TOKENS
        self._index.renew(trail.keys)
        return length

    def add(self, trail: Trail, token_ids: Sequence[int], row: int, length: int) -> None:
        """Keeps the whole blocks among the first `length` tokens of `row`, which are `token_ids`."""
        if not self._keeps:
            return
        while (len(trail.keys) + 1) * BLOCK_TOKENS <= length:
            key = trail.next_key(token_ids)
            if self._index.find(key) is None:
                place = self._index.place(key, trail.keys)
                if place is not None:
                    self._steps.keep(row, len(trail.keys) * BLOCK_TOKENS, place)
            trail.keys.append(key)
        self._index.renew(trail.keys)

    def forget(self) -> None:
        """Forgets all blocks. Their memory goes as `give_back` is called; nothing is kept until it has gone."""
        self._index.clear()
        self._given_back = 0

    def close(self) -> None:
        """Forgets, and keeps nothing more: other weights are in force."""
        if self._open:
            self._open = False
            self.forget()

    def give_back(self, most: int) -> bool:
        """Returns the memory of at most `most` forgotten blocks; False where there are more."""
        if self._given_back is not None:
            first, blocks = self._given_back, self._steps.prefix_blocks
            end = min(first + most, blocks)
            self._steps.forget(first, end)
            self._given_back = None if end == blocks else end
        return self._given_back is None

    @property
    def _keeps(self) -> bool:
        return self._open and self._given_back is None
