"""The contract of shared state, and the checks every implementation makes.

A store maps keys to bytes. Every write, delete and expiry gets the next revision of the whole store, and
the revision that last wrote a key is that key's version. Revisions only grow: they are microseconds of
the store's clock or, where those have not advanced, the last revision plus one. So a version read
before a failover that lost writes does not come back with other content after it.

A watch delivers, for every key under a prefix that changed after a revision, its latest value, in the
order of revisions. Values that were overwritten before the watch came to look are skipped: a slow
watcher costs no memory, and never ends on a stale value.

Every call ends within the store's time limit. When it is cut short (StoreUnavailable) a write may or may
not have happened: read again. This module knows no database.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from wire.errors import Conflict, InvalidRequest, PreconditionFailed, TooLarge, Unavailable

ABSENT = 0  # the version of a key that does not exist
MAX_KEY_BYTES = 512
MAX_VALUE_BYTES = 1 << 20
MAX_LIST = 1000
PREFIX_END = "\x7f"  # sorts after every character a key may have

_KEY = re.compile(r"[A-Za-z0-9._/@+:%=~-]+")


class StoreUnavailable(Unavailable):
    """The store cannot be reached, is locked, full or read-only; or its answer took too long."""


class VersionConflict(Conflict):
    """The key is not at the version the caller expected; `current` is the one it has."""

    def __init__(self, key: str, expected: int, current: int) -> None:
        self.key, self.expected, self.current = key, expected, current
        held = "does not exist" if current == ABSENT else f"is at version {current}"
        wanted = "that it did not exist" if expected == ABSENT else f"version {expected}"
        super().__init__(f"{key} {held}, the change expected {wanted}; read it again and retry")


class WatchTooOld(PreconditionFailed):
    """Deletions after that revision are forgotten, or the store is an older copy: list again, watch from there."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One key as it stands."""

    key: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Listing:
    """Entries in the order of their keys, all as of `revision`. `more`: ask again after the last key."""

    entries: tuple[Entry, ...]
    revision: int
    more: bool


@dataclass(frozen=True, slots=True)
class Change:
    """The latest state of a key that changed; `value` is None when it was deleted or expired."""

    key: str
    value: bytes | None
    version: int


class StateStore(Protocol):
    """Shared state. Keys: 1 to 512 characters of A-Z a-z 0-9 . _ / @ + : % = ~ -; values: at most 1 MiB."""

    async def get(self, key: str) -> Entry | None:
        """The entry, or None when there is none or it has expired."""
        ...

    async def set(self, key: str, value: bytes, ttl_s: float | None = None) -> int:
        """Writes whatever is there; returns the new version. `ttl_s` seconds later the key is gone."""
        ...

    async def compare_and_set(self, key: str, expected: int, value: bytes, ttl_s: float | None = None) -> int:
        """Writes only over version `expected` (ABSENT: creates only). Raises VersionConflict."""
        ...

    async def delete(self, key: str, expected: int | None = None) -> bool:
        """Whether there was something to delete. With `expected`, raises VersionConflict as above."""
        ...

    async def list(self, prefix: str, limit: int = MAX_LIST, after: str = "") -> Listing:
        """Up to `limit` entries whose keys start with `prefix` and sort after `after`."""
        ...

    def watch(self, prefix: str, since: int) -> AsyncIterator[Change]:
        """Changes after revision `since` (a Listing's, or the last Change's; 0 replays all that is there).

        Endless; close it to stop. Raises StoreUnavailable (list again before watching on: a failover can
        have taken back what was seen) or WatchTooOld.
        """
        ...

    async def close(self) -> None:
        """Releases connections and threads. The store cannot be used afterwards."""
        ...


def check_key(key: str) -> None:
    """Raises InvalidRequest for a key no store accepts."""
    if not key or len(key) > MAX_KEY_BYTES or not _KEY.fullmatch(key):
        raise InvalidRequest(
            f"state key {key[:80]!r} is not allowed: 1 to {MAX_KEY_BYTES} of A-Z a-z 0-9 . _ / @ + : % = ~ -"
        )


def check_prefix(prefix: str) -> None:
    """Like check_key; the empty prefix means every key."""
    if prefix:
        check_key(prefix)


def check_value(key: str, value: bytes, ttl_s: float | None) -> None:
    """Raises TooLarge or InvalidRequest for what no store keeps."""
    if len(value) > MAX_VALUE_BYTES:
        raise TooLarge(f"the value of {key} has {len(value)} bytes; at most {MAX_VALUE_BYTES}")
    if ttl_s is not None and not 0 < ttl_s <= 10 * 365 * 86_400:
        raise InvalidRequest(f"ttl_s is {ttl_s}; it must be positive and at most ten years")


def check_limit(limit: int) -> None:
    """Raises InvalidRequest for a listing that is not bounded."""
    if not 1 <= limit <= MAX_LIST:
        raise InvalidRequest(f"limit is {limit}; it must be 1 to {MAX_LIST}")
