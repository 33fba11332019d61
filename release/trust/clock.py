"""What time it is for a node whose own clock may be wrong.

Signed metadata says when it was issued; nothing verified can be newer than now. So the time taken is
the later of the box's own and the newest one signed: a clock that stands in 1970 costs nothing. A
clock that runs ahead cannot be told from old metadata, so that is refused, with both times in the
message; serving does not depend on it. Pure: reads no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from release.trust.errors import ClockWrong, Expired

_SKEW = timedelta(minutes=5)  # between two honest clocks
_DOUBTFUL = timedelta(days=400)  # longer than the life of any role


@dataclass(frozen=True, slots=True)
class Clock:
    """`own` is the box's time, `floor` the newest one that was signed, if any."""

    own: datetime
    floor: datetime | None = None

    def __post_init__(self) -> None:
        if self.own.tzinfo is None:
            raise ValueError("the time needs its zone: datetime.now(UTC)")

    @property
    def now(self) -> datetime:
        """The time to hold expiry dates against."""
        own = self.own.astimezone(UTC)
        return own if self.floor is None else max(own, self.floor)

    @property
    def note(self) -> str:
        """Why the box's own time is not taken; empty where it is."""
        if self.floor is None or self.own >= self.floor - _SKEW:
            return ""
        return (
            f"this box's clock says {_said(self.own)}, but metadata was signed at {_said(self.floor)}: "
            "that time is taken instead; set the clock"
        )

    def seen(self, issued: datetime | None) -> Clock:
        """The clock of one who has verified something signed at `issued`."""
        if issued is None or (self.floor is not None and self.floor >= issued):
            return self
        return Clock(self.own, issued)

    def demand(self, what: str, expires: datetime) -> None:
        """Raises Expired or ClockWrong when `what` is past its date."""
        if self.now < expires:
            return
        signed = "nothing signed tells the time yet" if self.floor is None else f"signed last: {_said(self.floor)}"
        if self.now - expires > _DOUBTFUL:
            raise ClockWrong(
                f"this box's clock says {_said(self.own)}, but {what} was good until {_said(expires)} ({signed}): set "
                "the clock; if it is right, nobody has refreshed the repository since. Updates wait, serving goes on"
            )
        raise Expired(
            f"{what} was good until {_said(expires)}, and it is {_said(self.now)} ({signed}): run `weir keys refresh` "
            "at the repository (its timer may have stopped), ask another source, or set this box's clock if it is ahead"
        )


def _said(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
