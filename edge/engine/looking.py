"""How much memory there is now, as this process and its system tell. What follows from it is edge.engine.room's."""

from __future__ import annotations

from edge.engine.config import EngineConfig
from edge.engine.room import Memory
from runtime import memory


def memory_here(config: EngineConfig) -> Memory:
    """For what is taken beside weights."""
    return Memory(memory.resident_bytes(), 0, memory.free_bytes(), config.memory_budget_bytes, config.memory_sharers)


class Looking:
    """For other weights; made before any are there, to tell later what of the memory taken is theirs."""

    def __init__(self, budget: int | None) -> None:
        self._budget, self._own = budget, memory.private_bytes()

    def __call__(self) -> Memory:
        theirs = max(memory.private_bytes() - self._own, 0)
        return Memory(memory.resident_bytes(), theirs, memory.free_bytes(), self._budget)
