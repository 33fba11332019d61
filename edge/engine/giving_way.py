"""How long a prompt that would hold up streams gives way to them.

It waits while it could still be read in small chunks before its deadline. Once it could not, it waits for the streams
that run then, where they end early enough for it to be read whole behind them, but not for those that come later:
else it would wait for ever where there are always streams.

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
        if left_s > _HASTE * creep_s:
            return True
        if self._until is None:
            in_time = streams_s + _HASTE * alone_s < left_s
            self._until = now + streams_s if in_time else now
        return now < self._until
