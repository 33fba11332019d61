"""Where requests wait while the weights are being changed and memory does not hold old and new at once.

A request passes the gate before it is tokenized and is inside until its answer has ended. Closing the
gate lets whoever is inside finish; whoever comes then waits, as in a queue, for it to open. Nobody waits
in vain: a request whose deadline is nearer than the gate is expected to open is refused at once, like
by a full queue, so that it can go elsewhere. How many wait at most is the caller's to bound.

One event loop uses it. Must not know: models, memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from wire.deadline import Deadline
from wire.errors import DeadlineExceeded, Overloaded


class Gate:
    """Open at first."""

    def __init__(self) -> None:
        self._opened = asyncio.Event()
        self._opened.set()
        self._left = asyncio.Event()
        self._opens_in: Callable[[], float] = lambda: 0.0
        self.inside = 0
        self.waiting = 0

    @property
    def closed(self) -> bool:
        return not self._opened.is_set()

    @asynccontextmanager
    async def passed(self, deadline: Deadline) -> AsyncIterator[float]:
        """Inside from here to the end of the block; gives the seconds that were waited.

        Raises Overloaded when the gate will not open in time, DeadlineExceeded when it did not.
        """
        waited = 0.0 if self._opened.is_set() else await self._wait(deadline)
        self.inside += 1
        try:
            yield waited
        finally:
            self.inside -= 1
            self._left.set()

    def close(self, opens_in: Callable[[], float]) -> None:
        """`opens_in` tells, whenever it is asked, in how many seconds the gate is expected to open."""
        self._opens_in = opens_in
        self._opened.clear()

    def open(self) -> None:
        self._opened.set()

    async def emptied(self, within_s: float) -> bool:
        """Waits until nobody is inside; False when somebody still is after `within_s`."""
        try:
            async with asyncio.timeout(max(within_s, 0.0)):
                while self.inside:
                    self._left.clear()
                    await self._left.wait()
        except TimeoutError:
            return False
        return True

    async def _wait(self, deadline: Deadline) -> float:
        began = time.monotonic()
        self.waiting += 1
        try:
            while not self._opened.is_set():
                left, expected = deadline.remaining_s(), self._opens_in()
                if left < expected:
                    raise Overloaded(
                        f"the weights are being changed, for about {expected:.1f} s more, and this request has "
                        f"{max(left, 0.0):.1f} s; try again later or allow more time"
                    )
                try:
                    async with asyncio.timeout(max(left, 0.0)):
                        await self._opened.wait()
                except TimeoutError:
                    waited = time.monotonic() - began
                    raise DeadlineExceeded(
                        f"the deadline passed after {waited:.1f} s in which the weights were being changed"
                    ) from None
        finally:
            self.waiting -= 1
        return time.monotonic() - began
