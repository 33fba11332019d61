"""The tables of a state file, and how a connection to one is made ready.

Schema 1: `store` holds one row, the revision of the whole and how far deletions are forgotten; `entries`
holds live keys and, with a NULL value, tombstones. A file of a newer schema is refused; a program that
knows schema N+1 must still read N.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

SCHEMA_VERSION = 1
APPLICATION_ID = 0x57454952  # "WEIR"

_SCHEMA_1 = (
    "CREATE TABLE store (id INTEGER PRIMARY KEY CHECK (id = 1), revision INTEGER NOT NULL, compacted INTEGER NOT NULL)",
    "INSERT INTO store (id, revision, compacted) VALUES (1, 0, 0)",
    "CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB, revision INTEGER NOT NULL UNIQUE, expires_at REAL)",
    "CREATE INDEX entries_expiry ON entries (expires_at) WHERE expires_at IS NOT NULL",
    "CREATE INDEX entries_tombstones ON entries (revision) WHERE value IS NULL",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


def prepare(path: Path, busy_s: float) -> sqlite3.Connection:
    """An open connection with the current schema. Raises sqlite3.Error."""
    connection = sqlite3.connect(path, timeout=busy_s, isolation_level=None)
    try:
        if _pragma(connection, "user_version") != SCHEMA_VERSION:
            _create(connection)
        if _pragma(connection, "application_id") != APPLICATION_ID:
            raise sqlite3.DatabaseError("is the database of another program")
        _use_wal(connection, busy_s)
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection, busy_s: float) -> None:
    """SQLite does not wait for the lock that this switch needs: processes that start together collide."""
    until = time.monotonic() + busy_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= until:
                raise
            time.sleep(0.02)


def _create(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _pragma(connection, "user_version")
        if version > SCHEMA_VERSION:
            raise sqlite3.DatabaseError(f"has schema {version}, this program knows {SCHEMA_VERSION}: upgrade Weir")
        if version == 0:
            if connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None:
                raise sqlite3.DatabaseError("is the database of another program")
            for statement in _SCHEMA_1:
                connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
