"""How much of bodies that are still being read this process holds, over all its connections together.

Each body alone is bounded, but a thousand at once would be gigabytes. The beginning of each is free, so that whoever
sends much cannot keep out those who send little; it is bounded by the number of connections.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from wire.errors import Unavailable

FREE_BYTES = 64 << 10
WHOLE_BODIES = 16  # so many of the largest may be on their way at once


class Crowded(Unavailable):
    """Other bodies that are being read leave no room for more of this one."""


class Intake:
    """The bytes that count. Every body that was begun gives its bytes back, whatever becomes of it."""

    def __init__(self) -> None:
        self.held = 0

    @contextmanager
    def body(self, most: int) -> Iterator[Share]:
        """One body, while it is read; all together may hold `most` bytes."""
        share = Share(self, most)
        try:
            yield share
        finally:
            self.held -= share.counted


class Share:
    """One body's part in it."""

    def __init__(self, intake: Intake, most: int) -> None:
        self._intake, self._most = intake, most
        self.counted = 0

    def grow(self, size: int) -> None:
        """The body has come to `size` bytes. Raises Crowded."""
        more = max(size - FREE_BYTES, 0) - self.counted
        if self._intake.held + more > self._most:
            raise Crowded("the bodies that are being sent to this node are as many bytes as it holds; try again")
        self._intake.held += more
        self.counted += more


PROCESS = Intake()
