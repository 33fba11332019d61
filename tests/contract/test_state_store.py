"""What every StateStore must do, on SQLite and on a real Redis alike."""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from cloud.state.base import (
    ABSENT,
    MAX_VALUE_BYTES,
    Change,
    StateStore,
    StoreUnavailable,
    VersionConflict,
    WatchTooOld,
)
from cloud.state.redis_store import RedisStateStore
from cloud.state.sqlite import SqliteStateStore
from tests.redis_server import RedisServer, require_redis
from wire.errors import Conflict, InvalidRequest, TooLarge, Unavailable

OpenStore = Callable[..., StateStore]
_namespaces = itertools.count()


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    require_redis()
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "redis"])
async def open_one(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenStore]:
    """Opens any number of stores on the same, fresh state; closes them afterwards."""
    opened: list[StateStore] = []
    if request.param == "redis":
        url = request.getfixturevalue("redis_server").url
        namespace = f"contract-{next(_namespaces)}"

    def open_one(**options: Any) -> StateStore:
        if request.param == "sqlite":
            opened.append(SqliteStateStore(tmp_path / "state.db", **options))
        else:
            # A shared two-core machine: generous, the tests about timeouts set their own.
            opened.append(RedisStateStore(url, namespace=namespace, **{"timeout_s": 5.0, **options}))
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture
def store(open_one: OpenStore) -> StateStore:
    return open_one()


async def collect(store: StateStore, prefix: str, since: int, enough: Callable[[list[Change]], bool]) -> list[Change]:
    seen: list[Change] = []
    async with asyncio.timeout(10), aclosing(store.watch(prefix, since)) as changes:  # type: ignore[type-var]
        async for change in changes:
            seen.append(change)
            if enough(seen):
                break
    return seen


async def eventually(check: Callable[[], Awaitable[bool]], within_s: float = 10) -> None:
    async with asyncio.timeout(within_s):
        while not await check():
            await asyncio.sleep(0.02)


# Values and versions


async def test_a_key_nobody_wrote_is_absent(store: StateStore) -> None:
    assert await store.get("nothing/here") is None
    listing = await store.list("")
    assert (listing.entries, listing.more) == ((), False)


async def test_what_was_set_is_what_is_read_by_every_store(open_one: OpenStore) -> None:
    first, second = open_one(), open_one()
    value = bytes(range(256)) + b"\x00"
    version = await first.set("a/b", value)
    entry = await second.get("a/b")
    assert entry is not None
    assert (entry.key, entry.value, entry.version) == ("a/b", value, version)
    assert await first.set("a/b", b"") > version
    entry = await second.get("a/b")
    assert entry is not None and entry.value == b""


async def test_versions_grow_over_all_keys(store: StateStore) -> None:
    versions = [await store.set(f"k{number % 3}", b"v") for number in range(20)]
    assert versions == sorted(set(versions))
    assert versions[0] > 1e15, "revisions are microseconds, so that they outgrow those of a lost copy"


async def test_compare_and_set_creates_only_once(store: StateStore) -> None:
    version = await store.compare_and_set("lock", ABSENT, b"mine")
    with pytest.raises(VersionConflict) as caught:
        await store.compare_and_set("lock", ABSENT, b"yours")
    assert caught.value.current == version
    assert isinstance(caught.value, Conflict)
    entry = await store.get("lock")
    assert entry is not None and entry.value == b"mine"


async def test_compare_and_set_wants_the_version_it_was_told(store: StateStore) -> None:
    old = await store.set("k", b"1")
    new = await store.compare_and_set("k", old, b"2")
    for stale in (old, new + 1, ABSENT):
        with pytest.raises(VersionConflict):
            await store.compare_and_set("k", stale, b"3")
    with pytest.raises(VersionConflict) as caught:
        await store.compare_and_set("other", new, b"3")
    assert caught.value.current == ABSENT
    entry = await store.get("k")
    assert entry is not None and (entry.value, entry.version) == (b"2", new)


async def test_delete_is_conditional_too_and_a_key_can_come_back(store: StateStore) -> None:
    version = await store.set("k", b"1")
    with pytest.raises(VersionConflict):
        await store.delete("k", version + 1)
    assert await store.delete("k", version)
    assert not await store.delete("k")
    with pytest.raises(VersionConflict):
        await store.compare_and_set("k", version, b"2")
    assert await store.compare_and_set("k", ABSENT, b"2") > version


async def test_bad_keys_and_big_values_are_refused_before_they_travel(store: StateStore) -> None:
    for key in ("", "with space", "ümlaut", "line\nbreak", "k" * 513):
        with pytest.raises(InvalidRequest):
            await store.get(key)
        with pytest.raises(InvalidRequest):
            await store.set(key, b"")
    with pytest.raises(TooLarge):
        await store.set("k", bytes(MAX_VALUE_BYTES + 1))
    await store.set("k", bytes(MAX_VALUE_BYTES))
    for ttl in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidRequest):
            await store.set("k", b"", ttl_s=ttl)
    with pytest.raises(InvalidRequest):
        await store.list("", limit=1001)


# Listing


async def test_a_listing_holds_the_prefix_in_order_and_pages(store: StateStore) -> None:
    keys = [f"release/m/{number:02}" for number in range(12)]
    for key in reversed(keys):
        await store.set(key, key.encode())
    for other in ("release/l", "release0", "active/m", "release"):
        await store.set(other, b"other")
    await store.set("release/m/99", b"gone")
    await store.delete("release/m/99")
    seen: list[str] = []
    after = ""
    for _ in range(4):
        listing = await store.list("release/m/", limit=5, after=after)
        seen += [entry.key for entry in listing.entries]
        assert all(entry.value == entry.key.encode() for entry in listing.entries)
        assert listing.more == (len(seen) < len(keys))
        after = seen[-1]
        if not listing.more:
            break
    assert seen == keys
    assert len((await store.list("")).entries) == len(keys) + 4


# TTL


async def test_an_entry_with_a_ttl_is_gone_after_it(store: StateStore) -> None:
    await store.set("k", b"short", ttl_s=0.3)
    await store.set("kept", b"long")
    assert await store.get("k") is not None

    async def gone() -> bool:
        return await store.get("k") is None

    await eventually(gone)
    assert [entry.key for entry in (await store.list("")).entries] == ["kept"]
    assert not await store.delete("k")
    await store.compare_and_set("k", ABSENT, b"again")
    await asyncio.sleep(0.35)
    assert await store.get("k") is not None, "writing without a TTL ends the old one"


async def test_a_watch_sees_an_expiry_that_nobody_announces(store: StateStore) -> None:
    version = await store.set("lease/a", b"held", ttl_s=0.3)
    changes = await collect(store, "lease/", 0, lambda seen: seen[-1].value is None)
    assert changes[-1].key == "lease/a"
    assert changes[-1].version > version


# Concurrency


async def increment(store: StateStore, key: str, times: int) -> None:
    for _ in range(times):
        for _ in range(2000):
            entry = await store.get(key)
            number, version = (int(entry.value), entry.version) if entry else (0, ABSENT)
            try:
                await store.compare_and_set(key, version, str(number + 1).encode())
                break
            except VersionConflict:
                continue
        else:
            raise AssertionError("no progress in 2000 attempts")


async def test_concurrent_increments_lose_nothing(open_one: OpenStore) -> None:
    stores = [open_one() for _ in range(4)]
    await asyncio.gather(*(increment(store, "counter", 10) for store in stores for _ in range(2)))
    entry = await stores[0].get("counter")
    assert entry is not None and int(entry.value) == 80


async def test_cancelled_calls_leave_no_answer_to_the_next_caller(store: StateStore) -> None:
    for number in range(20):
        await store.set(f"k{number}", str(number).encode())
    chance = random.Random(7)

    async def read(number: int) -> None:
        try:
            async with asyncio.timeout(chance.choice([0.0, 0.0005, 0.002, 5])):
                entry = await store.get(f"k{number}")
        except TimeoutError:
            return
        assert entry is not None and entry.value == str(number).encode()

    for _ in range(10):
        await asyncio.gather(*(read(number) for number in range(20)))


# Watching


async def test_a_watch_ends_on_every_final_value_in_order(open_one: OpenStore) -> None:
    writer, reader = open_one(), open_one()
    start = (await reader.list("w/")).revision
    chance = random.Random(3)
    final: dict[str, bytes | None] = {}
    last_version = 0

    async def write() -> None:
        nonlocal last_version
        for number in range(150):
            key = f"w/{chance.randrange(8)}"
            if chance.random() < 0.2 and final.get(key) is not None:
                await writer.delete(key)
                final[key] = None
            else:
                final[key] = str(number).encode()
                await writer.set(key, final[key] or b"")
            await writer.set("elsewhere", b"not watched")
            if number % 20 == 0:
                await asyncio.sleep(0.03)
        final["w/end"] = b"end"
        last_version = await writer.set("w/end", b"end")

    task = asyncio.create_task(write())
    changes = await collect(reader, "w/", start, lambda seen: seen[-1].key == "w/end")
    await task
    versions = [change.version for change in changes]
    assert versions == sorted(set(versions))
    assert versions[-1] == last_version
    assert {change.key: change.value for change in changes} == final


async def test_a_watch_resumes_where_it_stopped(store: StateStore) -> None:
    for number in range(5):
        await store.set(f"k{number}", b"v")
    first = await collect(store, "k", 0, lambda seen: len(seen) == 2)
    rest = await collect(store, "k", first[-1].version, lambda seen: len(seen) == 3)
    assert [change.key for change in first + rest] == [f"k{number}" for number in range(5)]


async def test_a_watch_of_many_keys_comes_in_bounded_batches(store: StateStore) -> None:
    await asyncio.gather(*(store.set(f"many/{number:03}", b"v") for number in range(300)))
    await asyncio.gather(*(store.set(f"other/{number:03}", b"v") for number in range(300)))
    await store.set("many/end", b"v")
    changes = await collect(store, "many/", 0, lambda seen: seen[-1].key == "many/end")
    assert len({change.key for change in changes}) == len(changes) == 301


async def test_a_change_is_seen_within_200_ms(open_one: OpenStore) -> None:
    writer, reader = open_one(), open_one()
    start = await writer.set("k", b"0")
    waits = []
    async with asyncio.timeout(20), aclosing(reader.watch("k", start)) as changes:  # type: ignore[type-var]
        for number in range(5):
            await writer.set("k", str(number).encode())
            began = time.monotonic()
            await anext(changes)
            waits.append(time.monotonic() - began)
    assert sorted(waits)[2] < 0.2, waits


async def test_a_watch_from_before_forgotten_deletions_says_so(open_one: OpenStore) -> None:
    store = open_one(max_tombstones=4)
    start = await store.set("a", b"1")
    for number in range(8):
        await store.set(f"k{number}", b"v")
        await store.delete(f"k{number}")
    with pytest.raises(WatchTooOld):
        await collect(store, "", start, lambda seen: False)
    listing = await store.list("")
    assert [entry.key for entry in listing.entries] == ["a"]
    await store.set("b", b"2")
    changes = await collect(store, "", listing.revision, lambda seen: True)
    assert [change.key for change in changes] == ["b"]
    replay = await collect(store, "", 0, lambda seen: seen[-1].key == "b")
    assert {change.key for change in replay if change.value is not None} == {"a", "b"}


async def test_a_watch_ahead_of_the_store_says_so(store: StateStore) -> None:
    version = await store.set("a", b"1")
    with pytest.raises(WatchTooOld):
        await collect(store, "", version + 10**9, lambda seen: False)


async def test_a_closed_store_refuses(open_one: OpenStore) -> None:
    store = open_one()
    await store.set("k", b"v")
    await store.close()
    with pytest.raises(Unavailable):
        await store.get("k")


# SQLite alone


_INCREMENT = """
import asyncio, sys
from pathlib import Path
from cloud.state.sqlite import SqliteStateStore
from tests.contract.test_state_store import increment

async def main():
    store = SqliteStateStore(Path(sys.argv[1]))
    await increment(store, "counter", 25)
    await store.close()

asyncio.run(main())
"""


async def test_sqlite_increments_from_several_processes_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state.db"  # does not exist yet: the processes race for creating it as well
    command = (sys.executable, "-c", _INCREMENT, str(path))
    root = Path(__file__).parents[2]
    processes = [await asyncio.create_subprocess_exec(*command, cwd=root) for _ in range(3)]
    async with asyncio.timeout(60):
        assert [await process.wait() for process in processes] == [0, 0, 0]
    store = SqliteStateStore(path)
    entry = await store.get("counter")
    await store.close()
    assert entry is not None and int(entry.value) == 75


# Redis alone


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    require_redis()
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.stop()


async def failing_within(call: Awaitable[object], limit_s: float) -> None:
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await call
    assert time.monotonic() - began < limit_s


def _take_away(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


async def test_a_sqlite_file_that_was_taken_away_is_said_and_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store, other = SqliteStateStore(path), SqliteStateStore(path)
    try:
        first = await store.set("k", b"lost")
        _take_away(path)
        with pytest.raises(StoreUnavailable, match="removed or replaced"):
            await store.get("k")
        assert await store.get("k") is None
        assert await store.set("k", b"kept") > first
        entry = await other.get("k")
        assert entry is not None
        assert entry.value == b"kept"
    finally:
        await store.close()
        await other.close()


async def test_a_killed_redis_fails_calls_in_time_and_recovers(own_redis: RedisServer) -> None:
    store = RedisStateStore(own_redis.url, timeout_s=1.0)
    version = await store.set("k", b"before")

    async def use() -> list[float]:
        """Calls without end; how long each failed one took."""
        failures = []
        while len(failures) < 3:
            began = time.monotonic()
            try:
                await store.get("k")
            except StoreUnavailable:
                failures.append(time.monotonic() - began)
        return failures

    users = [asyncio.create_task(use()) for _ in range(4)]
    watch = asyncio.create_task(collect(store, "k", version, lambda seen: True))
    await asyncio.sleep(0.2)
    own_redis.kill()
    async with asyncio.timeout(10):
        took = [seconds for user in users for seconds in await user]
        with pytest.raises(StoreUnavailable):
            await watch
    assert max(took) < 1.5, took
    own_redis.start()
    entry = await store.get("k")
    assert entry is not None and (entry.value, entry.version) == (b"before", version)
    assert await store.compare_and_set("k", version, b"after") > version
    await store.close()


async def test_a_redis_that_does_not_answer_hangs_nobody(own_redis: RedisServer) -> None:
    store = RedisStateStore(own_redis.url, timeout_s=0.5)
    await store.set("k", b"v")
    own_redis.freeze()
    # More callers than connections: those that wait for one are bounded by the same limit.
    await asyncio.gather(*(failing_within(store.get("k"), 1.5) for _ in range(40)))
    own_redis.thaw()

    async def answers() -> bool:
        try:
            return await store.get("k") is not None
        except StoreUnavailable:
            return False

    await eventually(answers)
    await store.close()


async def test_a_redis_that_lost_everything_never_reuses_a_version(tmp_path: Path) -> None:
    require_redis()
    server = RedisServer(tmp_path, append_only=False)
    server.start()
    try:
        store = RedisStateStore(server.url, timeout_s=5.0)
        version = await store.set("k", b"before")
        server.kill()
        server.start()
        assert await store.get("k") is None
        with pytest.raises(WatchTooOld):
            await collect(store, "k", version, lambda seen: False)
        assert await store.set("k", b"new") > version
        with pytest.raises(VersionConflict):
            await store.compare_and_set("k", version, b"on the strength of a lost write")
        await store.close()
    finally:
        server.stop()


async def test_idle_connections_that_died_with_a_restart_cost_no_caller_an_error(own_redis: RedisServer) -> None:
    store = RedisStateStore(own_redis.url, timeout_s=5.0)
    version = await store.set("k", b"1")
    for change in ("write", "delete"):
        await asyncio.gather(*(store.get("k") for _ in range(8)))  # several connections, all of them idle then
        own_redis.kill()
        own_redis.start()
        if change == "write":
            version = await store.compare_and_set("k", version, b"2")
        else:
            assert await store.delete("k", version)
    await store.close()


async def test_a_write_whose_answer_got_lost_is_made_once(own_redis: RedisServer) -> None:
    """A relay that cuts the connection after the server's answer, before the caller sees it."""
    cut = False

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal cut
        back, forth = await asyncio.open_connection("127.0.0.1", own_redis.port)
        closing = [writer, forth]

        async def requests() -> None:
            while data := await reader.read(65536):
                forth.write(data)

        async def answers() -> None:
            nonlocal cut
            while data := await back.read(65536):
                if cut:
                    cut = False
                    break
                writer.write(data)
            for one in closing:
                one.close()

        await asyncio.gather(requests(), answers(), return_exceptions=True)

    relaying = await asyncio.start_server(relay, "127.0.0.1", 0)
    port = relaying.sockets[0].getsockname()[1]
    store = RedisStateStore(f"redis://127.0.0.1:{port}/0", timeout_s=5.0)
    direct = RedisStateStore(own_redis.url, timeout_s=5.0)
    version = await store.compare_and_set("k", ABSENT, b"1")
    cut = True
    version = await store.compare_and_set("k", version, b"2")
    assert not cut
    entry = await direct.get("k")
    assert entry is not None and (entry.value, entry.version) == (b"2", version)
    cut = True
    assert await store.delete("k", version)
    assert not cut and await direct.get("k") is None
    await store.close()
    await direct.close()
    relaying.close()


async def test_nobody_listening_is_an_error_and_names_no_password(unused_tcp_port: int) -> None:
    store = RedisStateStore(f"redis://user:hunter2@127.0.0.1:{unused_tcp_port}/0")
    with pytest.raises(StoreUnavailable) as caught:
        await store.get("k")
    assert str(unused_tcp_port) in caught.value.message
    assert "hunter2" not in caught.value.message
    await store.close()
