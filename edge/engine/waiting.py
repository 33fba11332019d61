"""Who waits, in which order, and for how long: pure bookkeeping over what requests claim.

Order: by rank, which is when a request came, moved earlier by AGEING_S for each level of its priority and
value. As everybody ages alike, a request that has waited long enough stands before any that comes later,
whatever that one's level: nobody starves. A request too large for what is free now may be passed by smaller
ones, but only MOST_PASSED times; then all behind it wait.

Must not know: threads, models, rows.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

AGEING_S = 5.0
MOST_LEVELS = 8
MOST_PASSED = 8

T = TypeVar("T")


def level(priority: int, value: float | None) -> float:
    """How much more (or less) than the usual request one matters: a level per priority, one per doubled value."""
    worth = math.log2(value) if value is not None and value > 0 else -MOST_LEVELS if value == 0 else 0.0
    return max(-MOST_LEVELS, min(MOST_LEVELS, priority + worth))


def rank(priority: int, value: float | None, submitted: float) -> float:
    """The smallest goes first."""
    return submitted - AGEING_S * level(priority, value)


@dataclass(slots=True, order=True)
class _Place(Generic[T]):
    rank: float
    number: int
    claim: int = field(compare=False)
    item: T = field(compare=False)
    passed: int = field(default=0, compare=False)


class WaitingList(Generic[T]):
    """Items that claim some of a budget, best first."""

    def __init__(self) -> None:
        self._places: list[_Place[T]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[T]:
        """Best first."""
        return (place.item for place in self._places)

    def add(self, item: T, claim: int, rank: float) -> None:
        self._count += 1
        bisect.insort(self._places, _Place(rank, self._count, claim, item))

    def ahead_of(self, rank: float) -> list[T]:
        """Those that would go before a newcomer of that rank."""
        return [place.item for place in self._places if place.rank <= rank]

    def take(self, free: int) -> T | None:
        """Removes and gives the best item whose claim fits into `free`; None when nobody may go."""
        passed: list[_Place[T]] = []
        for index, place in enumerate(self._places):
            if place.claim <= free:
                for other in passed:
                    other.passed += 1
                del self._places[index]
                return place.item
            if place.passed >= MOST_PASSED:
                return None
            passed.append(place)
        return None

    def keep(self, wanted: Callable[[T], bool]) -> None:
        """Drops those that are not wanted any more."""
        self._places = [place for place in self._places if wanted(place.item)]

    def clear(self) -> None:
        self._places.clear()


@dataclass(frozen=True, slots=True)
class Turn:
    """How long one holds a slot yet, and how much of the budget with it."""

    seconds: float
    claim: int = 0


def wait_s(
    running: Sequence[Turn], ahead: Sequence[Turn], slots: int, budget: float = math.inf, claim: int = 0
) -> float:
    """Seconds until the turn of a newcomer who claims `claim`: until a slot and enough of the budget are free.

    `running` end after their time; `ahead` come first, in that order: that smaller ones may pass is left out.
    """
    ends = [(turn.seconds, turn.claim) for turn in running]
    heapq.heapify(ends)
    now, used = 0.0, sum(turn.claim for turn in running)
    for turn in (*ahead, Turn(0.0, claim)):
        while ends and (len(ends) >= slots or used + turn.claim > budget):
            end, freed = heapq.heappop(ends)
            now, used = max(now, end), used - freed
        heapq.heappush(ends, (now + turn.seconds, turn.claim))
        used += turn.claim
    return now
