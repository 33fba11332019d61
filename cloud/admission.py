"""Lets a bounded number of requests run and a bounded number wait, in order, within their deadlines.

Invariants: never more than `max_concurrent` inside, never more than `max_queue` waiting; a request
that leaves, waiting or running, gives its place up at once. One event loop only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from wire.deadline import Deadline
from wire.errors import DeadlineExceeded, Overloaded


class Admission:
    """`what` names the gate in messages."""

    def __init__(self, max_concurrent: int, max_queue: int, what: str) -> None:
        self._max_concurrent, self._max_queue, self._what = max_concurrent, max_queue, what
        self._free = asyncio.Semaphore(max_concurrent)
        self.active = 0
        self.queued = 0

    @asynccontextmanager
    async def place(self, deadline: Deadline) -> AsyncIterator[float]:
        """Waits for a place and gives the milliseconds it took. Raises Overloaded or DeadlineExceeded."""
        began = time.monotonic()
        if self._free.locked():
            await self._wait(deadline)
        else:
            await self._free.acquire()
        self.active += 1
        try:
            yield (time.monotonic() - began) * 1e3
        finally:
            self.active -= 1
            self._free.release()

    async def _wait(self, deadline: Deadline) -> None:
        if self.queued >= self._max_queue:
            raise Overloaded(
                f"{self._what} is full: {self._max_concurrent} requests run and {self.queued} wait; try again later"
            )
        self.queued += 1
        try:
            async with asyncio.timeout(max(deadline.remaining_s(), 0.0)):
                await self._free.acquire()
        except TimeoutError:
            raise DeadlineExceeded(
                f"the deadline passed while the request waited at {self._what}; allow more time or try again later"
            ) from None
        finally:
            self.queued -= 1
