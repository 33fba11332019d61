"""Threads that make texts into tokens, so that a long one does not hold the event loop.

What has not begun when its caller leaves or its deadline passes never does, and a deadline that passes meanwhile is
told then, not when a thread is free. What has begun goes on to its end: texts are bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

from wire.deadline import Deadline
from wire.errors import DeadlineExceeded

_T = TypeVar("_T")
_Told = TypeVarTuple("_Told")


class Tokenizing:
    """Used in one event loop. Close it."""

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, "tokenize")

    async def of(self, deadline: Deadline, work: Callable[[*_Told], _T], *told: *_Told) -> _T:
        """What `work` makes of `told`. Raises DeadlineExceeded, and what `work` raises."""
        deadline.check()
        # One that is no longer awaited is cancelled, and a thread passes over what was cancelled before it began.
        made = asyncio.get_running_loop().run_in_executor(self._threads, work, *told)
        try:
            async with asyncio.timeout(deadline.remaining_s()):
                return await made
        except TimeoutError as error:
            raise DeadlineExceeded("the deadline passed before the text had been made into tokens") from error

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
