"""Whether other weights find room: beside the ones that serve, only in their place, or not at all.

Pure: figures in, verdict out. The budget is the operator's and counts all memory of the process; what
the system has free is counted as well, whether or not there is a budget.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Room(enum.Enum):
    BESIDE = "beside"
    INSTEAD = "instead"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes: what the process takes now, what of it goes when the weights go, what the system has free."""

    resident: int
    freed: int
    free: int
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """`text` says what is short; empty for BESIDE."""

    room: Room
    text: str = ""


def room_for(needed: int, memory: Memory) -> Verdict:
    """Where weights that take `needed` bytes while they load can go."""
    short = _short(needed, memory.resident, memory.free, memory.budget)
    if not short:
        return Verdict(Room.BESIDE)
    alone = _short(needed, memory.resident - memory.freed, memory.free + memory.freed, memory.budget)
    return Verdict(Room.NONE, alone) if alone else Verdict(Room.INSTEAD, short)


def _short(needed: int, resident: int, free: int, budget: int | None) -> str:
    if budget is not None and resident + needed > budget:
        return (
            f"they need about {needed >> 20} MiB and memory_budget_bytes leaves "
            f"{max(budget - resident, 0) >> 20} of {budget >> 20} MiB"
        )
    return f"they need about {needed >> 20} MiB and {free >> 20} MiB are free" if needed > free else ""
