"""A request's deadline: one instant on the monotonic clock, shared by every hop and timeout."""

from __future__ import annotations

import time
from dataclasses import dataclass

from wire.errors import DeadlineExceeded

PASSED = "the request's deadline has passed; allow more time or ask for fewer tokens"


@dataclass(frozen=True, slots=True)
class Deadline:
    """The instant (monotonic seconds) after which an answer is worthless."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(time.monotonic() + seconds)

    def remaining_s(self) -> float:
        """Seconds left; negative when past."""
        return self.at - time.monotonic()

    @property
    def expired(self) -> bool:
        return self.remaining_s() <= 0

    def check(self) -> None:
        """Raises DeadlineExceeded when past."""
        if self.expired:
            raise DeadlineExceeded(PASSED)

    def capped(self, seconds: float) -> Deadline:
        """This deadline, or one `seconds` from now, whichever comes first."""
        return min(self, Deadline.after(seconds), key=lambda deadline: deadline.at)
