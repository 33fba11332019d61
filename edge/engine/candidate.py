"""A release that was verified for serving and is not in memory yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

M = TypeVar("M")


@dataclass(frozen=True, slots=True, eq=False)
class Candidate(Generic[M]):
    """Loading it takes at most `needed_bytes` more memory.

    `load` takes a while: not in the event loop. It raises PreconditionFailed, and Overloaded for too little memory.
    """

    release: str
    precision: int
    needed_bytes: int
    load: Callable[[], M]
