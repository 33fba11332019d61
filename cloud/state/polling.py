"""A watch made of bounded questions "what changed after this revision?", asked at an interval.

Polling instead of notifications: one mechanism on both stores, nothing to miss over a reconnect, and
expiries, which no writer announces, are seen as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from cloud.state.base import Change, WatchTooOld

POLL_INTERVAL_S = 0.1
MAX_BATCH = 256


@dataclass(frozen=True, slots=True)
class Batch:
    """One answer: changes in order, the store's revision, and how far this batch reaches."""

    changes: tuple[Change, ...]
    head: int
    seen: int
    compacted: int  # deletions at or before this revision are forgotten


Fetch = Callable[[int], Awaitable[Batch]]


async def poll(fetch: Fetch, since: int, interval_s: float = POLL_INTERVAL_S) -> AsyncIterator[Change]:
    """Endless changes after `since`. Raises what `fetch` raises, and WatchTooOld."""
    while True:
        batch = await fetch(since)
        check_resume(since, batch)
        for change in batch.changes:
            yield change
        since = max(since, batch.seen)
        if batch.seen >= batch.head:
            await asyncio.sleep(interval_s)


def check_resume(since: int, batch: Batch) -> None:
    """Whether the answers after `since` can be complete."""
    if since > batch.head:
        raise WatchTooOld(f"revision {since} is ahead of the store's {batch.head}: it is an older copy; list again")
    if 0 < since < batch.compacted:
        raise WatchTooOld(f"revision {since} is too old, deletions up to {batch.compacted} are forgotten; list again")
