"""State in one SQLite file: the default, for any number of processes on one machine.

All work runs in one worker thread, so a slow disk never holds up the event loop. Waiting is bounded
twice: by SQLite's busy timeout for another process's lock, and by the call's own time limit. Calls
that pile up behind a stuck disk are refused, not queued without end. Writes reach the disk before they
are answered (synchronous=FULL). The file must be on a local disk: WAL needs shared memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from cloud.state.base import (
    ABSENT,
    MAX_LIST,
    PREFIX_END,
    Change,
    Entry,
    Listing,
    StoreUnavailable,
    VersionConflict,
    check_key,
    check_limit,
    check_prefix,
    check_value,
)
from cloud.state.polling import MAX_BATCH, POLL_INTERVAL_S, Batch, poll
from cloud.state.sqlite_schema import prepare

MAX_PENDING_CALLS = 1024
MAX_TOMBSTONES = 10_000

T = TypeVar("T")


class SqliteStateStore:
    """StateStore over a file. `now` is seconds since the epoch."""

    kind = "sqlite"

    def __init__(
        self,
        path: Path,
        *,
        timeout_s: float = 5.0,
        busy_s: float = 2.0,
        poll_interval_s: float = POLL_INTERVAL_S,
        max_tombstones: int = MAX_TOMBSTONES,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._timeout_s, self._busy_s = path, timeout_s, busy_s
        self._interval_s, self._max_tombstones, self._now = poll_interval_s, max_tombstones, now
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weir-state")
        self._places = threading.Semaphore(MAX_PENDING_CALLS)
        self._connection: sqlite3.Connection | None = None  # touched by the worker thread only, as is the next
        self._file: tuple[int, int] | None = None  # what the connection has open

    async def get(self, key: str) -> Entry | None:
        check_key(key)
        return await self._call(functools.partial(self._get, key))

    async def set(self, key: str, value: bytes, ttl_s: float | None = None) -> int:
        check_key(key)
        check_value(key, value, ttl_s)
        return await self._call(functools.partial(self._write, key, None, value, ttl_s))

    async def compare_and_set(self, key: str, expected: int, value: bytes, ttl_s: float | None = None) -> int:
        check_key(key)
        check_value(key, value, ttl_s)
        return await self._call(functools.partial(self._write, key, expected, value, ttl_s))

    async def delete(self, key: str, expected: int | None = None) -> bool:
        check_key(key)
        return await self._call(functools.partial(self._delete, key, expected))

    async def list(self, prefix: str, limit: int = MAX_LIST, after: str = "") -> Listing:
        check_prefix(prefix)
        check_prefix(after)
        check_limit(limit)
        return await self._call(functools.partial(self._list, prefix, limit, after))

    def watch(self, prefix: str, since: int) -> AsyncIterator[Change]:
        check_prefix(prefix)

        async def fetch(after: int) -> Batch:
            return await self._call(functools.partial(self._changes, prefix, after))

        return poll(fetch, since, self._interval_s)

    async def close(self) -> None:
        with contextlib.suppress(StoreUnavailable):
            await self._call(self._disconnect)
        self._executor.shutdown(wait=False, cancel_futures=True)

    # From here on: the worker thread.

    def _get(self, key: str) -> Entry | None:
        row = self._open().execute(
            "SELECT value, revision FROM entries WHERE key = ? AND value IS NOT NULL "
            "AND (expires_at IS NULL OR expires_at > ?)",
            (key, self._now()),
        )
        found = row.fetchone()
        return None if found is None else Entry(key, bytes(found[0]), int(found[1]))

    def _write(self, key: str, expected: int | None, value: bytes, ttl_s: float | None) -> int:
        with self._transaction() as db:
            self._check_version(db, key, expected)
            revision = self._next_revision(db)
            expires_at = None if ttl_s is None else self._now() + ttl_s
            db.execute(
                "INSERT INTO entries (key, value, revision, expires_at) VALUES (?, ?, ?, ?) ON CONFLICT (key) "
                "DO UPDATE SET value = excluded.value, revision = excluded.revision, expires_at = excluded.expires_at",
                (key, value, revision, expires_at),
            )
            return revision

    def _delete(self, key: str, expected: int | None) -> bool:
        with self._transaction() as db:
            if self._check_version(db, key, expected) == ABSENT:
                return False
            self._bury(db, key)
            return True

    def _list(self, prefix: str, limit: int, after: str) -> Listing:
        db = self._open()
        with _snapshot(db):
            (revision,) = db.execute("SELECT revision FROM store").fetchone()
            rows = db.execute(
                "SELECT key, value, revision FROM entries WHERE key >= ? AND key < ? AND key > ? "
                "AND value IS NOT NULL AND (expires_at IS NULL OR expires_at > ?) ORDER BY key LIMIT ?",
                (prefix, prefix + PREFIX_END, after, self._now(), limit + 1),
            ).fetchall()
        entries = tuple(Entry(key, bytes(value), version) for key, value, version in rows[:limit])
        return Listing(entries, revision, more=len(rows) > limit)

    def _changes(self, prefix: str, since: int) -> Batch:
        db = self._open()
        overdue = db.execute("SELECT 1 FROM entries WHERE expires_at <= ? LIMIT 1", (self._now(),)).fetchone()
        if overdue is not None:
            with self._transaction():
                pass  # every transaction begins by burying what expired
        with _snapshot(db):
            head, compacted = db.execute("SELECT revision, compacted FROM store").fetchone()
            rows = db.execute(
                "SELECT key, value, revision FROM entries WHERE revision > ? AND key >= ? AND key < ? "
                "ORDER BY revision LIMIT ?",
                (since, prefix, prefix + PREFIX_END, MAX_BATCH),
            ).fetchall()
        changes = tuple(Change(key, None if value is None else bytes(value), version) for key, value, version in rows)
        seen = changes[-1].version if len(changes) == MAX_BATCH else head
        return Batch(changes, head, seen, compacted)

    def _check_version(self, db: sqlite3.Connection, key: str, expected: int | None) -> int:
        row = db.execute("SELECT revision FROM entries WHERE key = ? AND value IS NOT NULL", (key,)).fetchone()
        current = ABSENT if row is None else int(row[0])
        if expected is not None and current != expected:
            raise VersionConflict(key, expected, current)
        return current

    def _next_revision(self, db: sqlite3.Connection) -> int:
        micros = int(self._now() * 1e6)
        row = db.execute("UPDATE store SET revision = max(revision + 1, ?) RETURNING revision", (micros,)).fetchone()
        return int(row[0])

    def _bury(self, db: sqlite3.Connection, key: str) -> None:
        """Leaves a tombstone, so that watches see the deletion."""
        db.execute(
            "UPDATE entries SET value = NULL, expires_at = NULL, revision = ? WHERE key = ?",
            (self._next_revision(db), key),
        )

    def _forget(self, db: sqlite3.Connection) -> None:
        """Drops the oldest tombstones beyond the bound."""
        (count,) = db.execute("SELECT count(*) FROM entries WHERE value IS NULL").fetchone()
        if count > self._max_tombstones:
            db.execute(
                "UPDATE store SET compacted = (SELECT revision FROM entries WHERE value IS NULL "
                "ORDER BY revision LIMIT 1 OFFSET ?)",
                (count - self._max_tombstones - 1,),
            )
            db.execute("DELETE FROM entries WHERE value IS NULL AND revision <= (SELECT compacted FROM store)")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        db = self._open()
        db.execute("BEGIN IMMEDIATE")
        try:
            for (key,) in db.execute("SELECT key FROM entries WHERE expires_at <= ?", (self._now(),)).fetchall():
                self._bury(db, key)
            yield db
            self._forget(db)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and self._file != _identity(self._path):
            # SQLite would go on in a file that no other process sees and no restart finds.
            raise sqlite3.OperationalError("the file was removed or replaced while in use, and is opened anew")
        if self._connection is None:
            self._connection = prepare(self._path, self._busy_s)
            self._file = _identity(self._path)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _guarded(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except sqlite3.Error as error:
            # A lock that another process holds passes; anything else may have spoiled the connection.
            if "locked" not in str(error):
                with contextlib.suppress(sqlite3.Error):
                    self._disconnect()
                self._connection = None
            raise StoreUnavailable(
                f"state file {self._path}: {error}; check the path, the disk and other users of it"
            ) from error

    async def _call(self, work: Callable[[], T]) -> T:
        if not self._places.acquire(blocking=False):
            raise StoreUnavailable(f"state file {self._path}: {MAX_PENDING_CALLS} calls are waiting; the disk is stuck")
        try:
            future: Future[T] = self._executor.submit(self._guarded, work)
        except RuntimeError as error:
            self._places.release()
            raise StoreUnavailable(f"state file {self._path} is closed") from error
        future.add_done_callback(lambda _: self._places.release())
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.wrap_future(future)
        except TimeoutError as error:
            raise StoreUnavailable(f"state file {self._path} took longer than {self._timeout_s} s") from error


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


@contextlib.contextmanager
def _snapshot(db: sqlite3.Connection) -> Iterator[None]:
    """Reads inside see one state of the file."""
    db.execute("BEGIN")
    try:
        yield
    finally:
        db.execute("COMMIT")
