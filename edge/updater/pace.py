"""How fast to fetch: at full rate, or within a share of the link, in pieces with rests between them.

While resting nothing is underway, so a share of the time is a share of the link whatever its rate; the
pieces of a shared link are short, so that a request waits for a fraction of a second at most. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

LEAST_PIECE, MOST_PIECE = 16 << 10, 1 << 20
_PIECE_S = 0.25
_WHOLE_PIECE_S = 5.0  # at full rate: how long a change of mind may have to wait


@dataclass(frozen=True, slots=True)
class Pace:
    """`share` of the time may be spent, or `bytes_per_s` where that is known; `most_bytes` before asking again.

    `budget_bytes` is what the day's budget has left (None: there is none), for servers that send more than was asked.
    """

    share: float = 1.0
    bytes_per_s: float | None = None
    most_bytes: int | None = None
    budget_bytes: int | None = None

    def piece(self, rest_of_chunk: int, rate: float | None) -> int:
        """Bytes to ask for next, on a link that carries `rate` bytes a second at its best (None: unknown).

        Never beyond the chunk in work, so that an interruption cannot cost more than that.
        """
        most, whole = rest_of_chunk, self.share >= 1
        if rate is not None:
            most = min(most, max(LEAST_PIECE, int(rate * (_WHOLE_PIECE_S if whole else _PIECE_S))))
        elif not whole:
            most = min(most, LEAST_PIECE)
        if not whole:
            most = min(most, MOST_PIECE)
        if self.most_bytes is not None:
            most = min(most, self.most_bytes)
        return max(1, most)

    def rest_s(self, moved_bytes: int, seconds: float) -> float:
        """How long to rest after a piece that took `seconds`."""
        if self.share >= 1:
            return 0.0
        by_time = seconds * (1 - self.share) / self.share
        if not self.bytes_per_s:
            return by_time
        # The rate was measured earlier: where the link has become better since, the piece itself says so.
        return min(by_time, max(0.0, moved_bytes / self.bytes_per_s - seconds))
