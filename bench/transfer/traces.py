"""Recorded links: read from a data set, multiplied, repeated without end.

A trace is a rate that changes at known times. It begins again when it ends, so that a transfer of any length
can be held against it. Must not know: what is transferred.
"""

from __future__ import annotations

import bisect
import gzip
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

DATA_FILE = Path("network") / "hsdpa-norway-3g.jsonl.gz"
_BITS = 8


class TraceError(Exception):
    """The data set is not there, or is not what it should be."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A link. `rates` are bytes a second, each in force from its time in `starts` until the next; then again."""

    name: str
    starts: tuple[float, ...]
    rates: tuple[float, ...]
    period_s: float

    def __post_init__(self) -> None:
        if not self.starts or len(self.starts) != len(self.rates) or self.starts[0] != 0:
            raise TraceError(f"trace {self.name}: one rate per time is needed, the first at 0")
        ends = (*self.starts, self.period_s)
        if any(later <= earlier for earlier, later in pairwise(ends)):
            raise TraceError(f"trace {self.name}: times must rise, and end before the period does")
        if not all(rate >= 0 for rate in self.rates) or not any(self.rates):
            raise TraceError(f"trace {self.name}: rates must be 0 or more, and one above 0")

    def times(self, factor: float) -> Trace:
        """The same link, `factor` times as fast."""
        return Trace(self.name, self.starts, tuple(rate * factor for rate in self.rates), self.period_s)

    @property
    def period_bytes(self) -> float:
        return sum(rate * (end - start) for start, end, rate in self._pieces())

    @property
    def mean_bytes_per_s(self) -> float:
        return self.period_bytes / self.period_s

    def rate_at(self, at_s: float) -> float:
        return self.rates[bisect.bisect_right(self.starts, at_s % self.period_s) - 1]

    def next_change(self, at_s: float) -> float:
        """When another rate comes into force, strictly after `at_s`."""
        rounds, rest = divmod(at_s, self.period_s)
        after = next((start for start in self.starts if start > rest), self.period_s)
        return max(rounds * self.period_s + after, at_s + 1e-6)

    def seconds_for(self, count: float, start_s: float = 0.0) -> float:
        """How long `count` bytes take from `start_s` on, the whole link theirs."""
        rounds = int(count // self.period_bytes)
        left, now = count - rounds * self.period_bytes, start_s % self.period_s
        began = now
        while left > 1e-9:
            end = self.next_change(now)
            carried = self.rate_at(now) * (end - now)
            if carried >= left:
                return rounds * self.period_s + now - began + left / self.rate_at(now)
            left, now = left - carried, end
        return rounds * self.period_s + now - began

    def _pieces(self) -> list[tuple[float, float, float]]:
        ends = (*self.starts[1:], self.period_s)
        return list(zip(self.starts, ends, self.rates, strict=True))


def read_traces(data: Path) -> list[Trace]:
    """Every trace of the data set under `data`, in its order. Raises TraceError."""
    path = data / DATA_FILE
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            return [_trace(json.loads(line)) for line in lines if line.strip()]
    except FileNotFoundError as error:
        raise TraceError(f"{path} is not there: give the data sets' folder with --data or WEIR_DATA") from error
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{path} cannot be read as traces: {error}") from error


def choose(traces: Sequence[Trace], count: int, seed: int) -> list[Trace]:
    """`count` of them by a seeded draw, in the data set's order."""
    if count >= len(traces):
        return list(traces)
    drawn = sorted(random.Random(seed).sample(range(len(traces)), count))
    return [traces[index] for index in drawn]


def _trace(row: dict[str, object]) -> Trace:
    name, times, rates = str(row["name"]), row["t_s"], row["mbps"]
    if not isinstance(times, list) or not isinstance(rates, list) or len(times) < 2:
        raise TypeError(f"trace {name} has no times")
    starts = tuple(float(at) - float(times[0]) for at in times)
    # The last sample holds as long as the one before it did.
    period = 2 * starts[-1] - starts[-2]
    return Trace(name, starts, tuple(float(rate) * 1e6 / _BITS for rate in rates), period)
