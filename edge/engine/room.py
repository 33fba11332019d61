"""Whether other weights find room: beside the ones that serve, only in their place, or not at all; and how
much prompts and answers may take beside weights.

Pure: figures in, verdict out. The budget is the operator's and counts all memory of the process; what
the system has free is counted as well, whether or not there is a budget.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

_PREFIX_BYTES = 256 << 20
_PREFIX_SHARE = 8  # one part in so many of what is free
# Whatever is free: with less hardly anything could be answered.
_LEAST_KV_TOKENS, _LEAST_KV_BYTES = 512, 32 << 20


class Room(enum.Enum):
    BESIDE = "beside"
    INSTEAD = "instead"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes: what the process takes now, what of it goes when the weights go, what the system has free.

    Without a budget, `sharers` processes promise of what is free, this one among them.
    """

    resident: int
    freed: int
    free: int
    budget: int | None = None
    sharers: int = 1

    @property
    def left(self) -> int:
        """What may still be promised."""
        if self.budget is None:
            return self.free // self.sharers
        return max(min(self.free, self.budget - self.resident), 0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`text` says what is short; empty for BESIDE."""

    room: Room
    text: str = ""


def prefix_bytes(asked: int | None, memory: Memory) -> int:
    """What kept prefixes may take: what was asked for, within a share of what is free."""
    return min(_PREFIX_BYTES if asked is None else asked, memory.left // _PREFIX_SHARE)


def kv_tokens(asked: int | None, most: int, bytes_per_token: int, memory: Memory, reserved: int) -> int:
    """How many tokens' KV may be in memory: what was asked for, at most `most`, within what is free.

    `reserved` bytes of that are promised to others, less what KV has taken already.
    """
    fits = max(memory.left - reserved, _LEAST_KV_BYTES) // bytes_per_token
    return min(most if asked is None else min(asked, most), max(fits, _LEAST_KV_TOKENS))


def room_for(needed: int, memory: Memory, promised: int = 0) -> Verdict:
    """Where weights that take `needed` bytes while they load can go.

    `promised` bytes may still come to be taken by answers of the weights that serve meanwhile.
    """
    short = _short(needed, memory.resident, memory.free, memory.budget, promised)
    if not short:
        return Verdict(Room.BESIDE)
    alone = _short(needed, memory.resident - memory.freed, memory.free + memory.freed, memory.budget)
    return Verdict(Room.NONE, alone) if alone else Verdict(Room.INSTEAD, short)


def _short(needed: int, resident: int, free: int, budget: int | None, promised: int = 0) -> str:
    beside = f", {promised >> 20} of them promised to answers" if promised >> 20 else ""
    if budget is not None and resident + promised + needed > budget:
        return (
            f"they need about {needed >> 20} MiB and memory_budget_bytes leaves "
            f"{max(budget - resident, 0) >> 20} of {budget >> 20} MiB{beside}"
        )
    short = needed + promised > free
    return f"they need about {needed >> 20} MiB and {free >> 20} MiB are free{beside}" if short else ""
