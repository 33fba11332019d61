"""The shaping proxy on real sockets. Times are asserted as orders and lower bounds only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from bench.link import BUFFER_BYTES, Link, Shape, TokenBucket

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def linked(shape: Shape, handler: Handler = echo) -> AsyncIterator[Link]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    try:
        async with Link("127.0.0.1", server.sockets[0].getsockname()[1], shape, seed=7) as link:
            yield link
    finally:
        server.close()


async def there_and_back(link: Link, data: bytes) -> tuple[bytes, float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    began = time.monotonic()
    writer.write(data)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(-1), 30)
    writer.close()
    return answer, time.monotonic() - began


async def test_bytes_arrive_whole_in_order_and_are_counted() -> None:
    data = bytes(range(256)) * 2048
    async with linked(Shape(jitter_s=0.002)) as link:
        before = link.count()
        answer, _ = await there_and_back(link, data)
        flowed = link.count().since(before)
    assert answer == data
    assert (flowed.up_bytes, flowed.down_bytes) == (len(data), len(data))


async def test_a_rate_holds_back_and_its_measure_stays_under_it() -> None:
    rate, size = 200_000.0, 100_000
    async with linked(Shape(bytes_per_s=rate)) as link:
        before = link.count()
        answer, seconds = await there_and_back(link, b"x" * size)
        flowed = link.count().since(before)
    assert len(answer) == size
    assert seconds >= 0.8 * size / rate
    assert flowed.down_bytes_per_s <= 1.1 * rate


async def test_a_delay_is_paid_in_both_directions() -> None:
    async with linked(Shape(delay_s=0.1)) as link:
        _, seconds = await there_and_back(link, b"x")
    assert seconds >= 0.2


async def test_a_shape_changes_while_a_connection_lives() -> None:
    async with linked(Shape()) as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)

        async def ping() -> float:
            began = time.monotonic()
            writer.write(b"x" * 1000)
            await asyncio.wait_for(reader.readexactly(1000), 10)
            return time.monotonic() - began

        fast = await ping()
        link.shape(Shape(bytes_per_s=10_000, delay_s=0.05), Shape())
        slow = await ping()
        link.shape(Shape())
        again = await ping()
        writer.close()
    assert slow >= 0.05 + 0.5 * 1000 / 10_000
    assert fast < slow > again


async def test_a_cut_resets_what_is_open_refuses_what_is_new_and_keeps_its_port() -> None:
    async with linked(Shape()) as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(b"x")
        await asyncio.wait_for(reader.readexactly(1), 5)
        port = link.port
        await link.cut()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.readexactly(1), 5)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        assert link.is_cut
        await link.restore()
        assert link.port == port
        answer, _ = await there_and_back(link, b"back")
        writer.close()
    assert answer == b"back"


async def test_a_cut_ends_a_transfer_that_waits_inside() -> None:
    async with linked(Shape(delay_s=60)) as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(b"x" * 1000)
        await asyncio.sleep(0.05)
        await asyncio.wait_for(link.cut(), 5)
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(1), 5)
        writer.close()


async def test_a_target_that_is_not_there_looks_like_a_broken_link() -> None:
    async with Link("127.0.0.1", 9) as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.readexactly(1), 5)
        writer.close()


async def test_what_waits_inside_is_bounded() -> None:
    taken = 0

    async def sink(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        nonlocal taken
        while data := await reader.read(65536):
            taken += len(data)

    async with linked(Shape(bytes_per_s=1_000_000, delay_s=30), sink) as link:
        _, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.transport.set_write_buffer_limits(high=0)
        with pytest.raises(TimeoutError):
            for _ in range(400):
                writer.write(b"x" * 65536)
                await asyncio.wait_for(writer.drain(), 1.0)
        (pipe_bytes,) = [waiting for waiting in link.waiting_bytes() if waiting]
        assert pipe_bytes <= BUFFER_BYTES
        assert taken == 0
        writer.transport.abort()


def test_a_bucket_spaces_pieces_by_the_rate_and_forgets_idle_time() -> None:
    bucket = TokenBucket(burst_s=0.0)
    assert bucket.leaves_at(100, 100.0, now=0.0) == 1.0
    assert bucket.leaves_at(100, 100.0, now=0.0) == 2.0
    assert bucket.leaves_at(100, 100.0, now=10.0) == 11.0
    assert bucket.leaves_at(100, None, now=10.5) == 10.5


@pytest.mark.parametrize("wrong", [{"bytes_per_s": 0}, {"bytes_per_s": -1}, {"delay_s": -1}, {"jitter_s": -0.1}])
def test_an_impossible_shape_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Shape(**wrong)
