"""How long a prompt that would hold up streams gives way to them.

It waits for those that run when it begins to: until they have ended, where it can be read whole in time after that,
else for as long as there is time to read it in small chunks beside them. Not for those that come later: it would wait
for ever where there are always streams.

Must not know: clocks, rows, what a chunk costs.
"""

from __future__ import annotations

_HASTE = 2.0  # times what reading is expected to take there must be, since expectations are often too low


class GivingWay:
    """Of one prompt."""

    def __init__(self) -> None:
        self._until: float | None = None

    def lasts(self, now: float, left_s: float, *, creep_s: float, alone_s: float, streams_s: float) -> bool:
        """Whether it goes on waiting at `now`, with `left_s` until its deadline.

        It would take `creep_s` in small chunks beside streams and `alone_s` once these have ended, which they have
        after `streams_s` at the latest.
        """
        if self._until is None:
            in_time = streams_s + _HASTE * alone_s < left_s
            self._until = now + (streams_s if in_time else min(streams_s, left_s - _HASTE * creep_s))
        return now < self._until
