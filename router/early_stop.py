"""The level of running confidence under which an answer in the making is given up, by how long it is so far.

A level holds for a bucket of token counts: 1, 2 to 3, 4 to 7, 8 to 15 and so on. Levels are fitted with a
calibrator, on its own running confidence, so that few of the answers that would end well ever fall under them
(quantize.early_stop).
Where none was fitted nothing is given up.

Must not know: how levels are fitted.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST_BUCKETS = 32


def bucket(tokens: int) -> int:
    """Which bucket an answer of so many tokens (at least 1) is in, from 0."""
    return tokens.bit_length() - 1


def stop_level(levels: Sequence[float], tokens: int) -> float:
    """The confidence under which an answer of `tokens` tokens is given up; 0, which none is under, without a level."""
    if tokens < 1:
        return 0.0
    place = bucket(tokens)
    return levels[place] if place < len(levels) else 0.0
