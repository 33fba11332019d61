"""Which of the texts that wait go into the next batch: those nearest in length to the one whose turn it is.

Pure. The first in the order of turns is always in the batch; a text longer than a whole batch may be
goes alone. The bounds hold for every batch of more than one text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one batch: texts, tokens with padding, and the share of those that may be padding."""

    rows: int = 32
    tokens: int = 256
    padding: float = 0.2


def pick(lengths: Sequence[int], bounds: Bounds) -> list[int]:
    """Places in `lengths`, which is in the order of turns and not empty, of those that go together."""
    first = lengths[0]
    nearest = sorted(range(1, len(lengths)), key=lambda index: (abs(lengths[index] - first), index))
    chosen, total, longest = [0], first, first
    for index in nearest:
        rows, own, most = len(chosen) + 1, total + lengths[index], max(longest, lengths[index])
        if rows > bounds.rows:
            break
        if rows * most > bounds.tokens or rows * most - own > bounds.padding * rows * most:
            continue
        chosen.append(index)
        total, longest = own, most
    return chosen
