"""State in Redis (or Valkey), for gateways and admins on several machines.

Every call is one Lua script and one round trip. Nothing waits longer than `timeout_s` in all, waiting
for a connection included: an unreachable Redis costs a caller that time and an error, never a hang. A
call whose connection breaks is sent once more over a fresh one within that time, because the pool's die
with a restart of the server; a token in every write lets the server tell that it had made it already.
Connections are bounded. What a failover can lose: docs/state.md.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import RedisError

from cloud.state.base import (
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
from cloud.state.redis_scripts import CHANGES, DELETE, GET, KEY_NAMES, LIST, WRITE

MAX_CONNECTIONS = 16
MAX_TOMBSTONES = 10_000


class RedisStateStore:
    """StateStore over a Redis server. `url` is redis:// or rediss://; keys lie under `{namespace}:`."""

    kind = "redis"

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "weir",
        timeout_s: float = 1.0,
        poll_interval_s: float = POLL_INTERVAL_S,
        max_tombstones: int = MAX_TOMBSTONES,
    ) -> None:
        parts = urlsplit(url)
        self._where = f"{parts.hostname}:{parts.port or 6379}"  # never the password
        self._timeout_s, self._interval_s, self._max_tombstones = timeout_s, poll_interval_s, max_tombstones
        self._keys = [f"{{{namespace}}}:{name}" for name in KEY_NAMES]
        pool: BlockingConnectionPool = BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            # The client's default retries for seconds; whoever calls knows how long it may take.
            retry=Retry(NoBackoff(), 0),
        )
        self._client: Redis = Redis.from_pool(pool)
        self._scripts = {body: self._client.register_script(body) for body in (GET, WRITE, DELETE, LIST, CHANGES)}
        self._closed = False

    async def get(self, key: str) -> Entry | None:
        check_key(key)
        answer = await self._run(GET, key)
        return Entry(key, answer[0], answer[1]) if answer else None

    async def set(self, key: str, value: bytes, ttl_s: float | None = None) -> int:
        check_key(key)
        check_value(key, value, ttl_s)
        return await self._write(key, None, value, ttl_s)

    async def compare_and_set(self, key: str, expected: int, value: bytes, ttl_s: float | None = None) -> int:
        check_key(key)
        check_value(key, value, ttl_s)
        return await self._write(key, expected, value, ttl_s)

    async def delete(self, key: str, expected: int | None = None) -> bool:
        check_key(key)
        done, number = await self._run(DELETE, key, _token(), "" if expected is None else expected)
        if not done:
            raise VersionConflict(key, expected or 0, number)
        return bool(number)

    async def list(self, prefix: str, limit: int = MAX_LIST, after: str = "") -> Listing:
        check_prefix(prefix)
        check_prefix(after)
        check_limit(limit)
        lowest = f"({after}" if after >= prefix and after else f"[{prefix}"
        answer = await self._run(LIST, lowest, f"({prefix}{PREFIX_END}", limit)
        rows = zip(answer[2::3], answer[3::3], answer[4::3], strict=True)
        entries = tuple(Entry(key.decode(), value, version) for key, value, version in rows)
        return Listing(entries, answer[0], more=bool(answer[1]))

    def watch(self, prefix: str, since: int) -> AsyncIterator[Change]:
        check_prefix(prefix)

        async def fetch(after: int) -> Batch:
            answer = await self._run(CHANGES, prefix, after, MAX_BATCH)
            rows = zip(answer[3::4], answer[4::4], answer[5::4], answer[6::4], strict=True)
            changes = tuple(
                Change(key.decode(), value if live else None, version) for key, version, live, value in rows
            )
            return Batch(changes, answer[0], answer[1], answer[2])

        return poll(fetch, since, self._interval_s)

    async def close(self) -> None:
        self._closed = True
        await self._client.aclose()
        await self._client.connection_pool.disconnect()

    async def _write(self, key: str, expected: int | None, value: bytes, ttl_s: float | None) -> int:
        ttl_ms = "" if ttl_s is None else max(1, round(ttl_s * 1000))
        condition = "" if expected is None else expected
        done, version = await self._run(WRITE, key, _token(), condition, value, ttl_ms)
        if not done:
            raise VersionConflict(key, expected or 0, version)
        return int(version)

    async def _run(self, script: str, *arguments: str | bytes | int) -> Any:
        if self._closed:
            raise StoreUnavailable(f"the connection to Redis at {self._where} is closed")
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._attempt(script, arguments)
        except TimeoutError as error:
            raise StoreUnavailable(f"Redis at {self._where} did not answer within {self._timeout_s} s") from error
        except (RedisError, OSError) as error:
            raise StoreUnavailable(f"Redis at {self._where}: {error}; is it running and reachable?") from error

    async def _attempt(self, script: str, arguments: tuple[str | bytes | int, ...]) -> Any:
        command = self._scripts[script]
        given = [self._max_tombstones, *arguments]
        try:
            return await command(keys=self._keys, args=given)
        except ConnectionLost:
            await self._client.connection_pool.disconnect(inuse_connections=False)
            return await command(keys=self._keys, args=given)


def _token() -> str:
    """Names one write, however often it is sent."""
    return secrets.token_hex(8)
