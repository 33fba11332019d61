"""A TCP proxy that makes a link narrow, slow or dead, on real sockets and while traffic flows.

Each direction has its own token bucket, delay and jitter. Bytes leave in the order they came, so
that jitter delays and never reorders. What waits inside is bounded: a full buffer stops reading,
and TCP tells the sender. Counters are of bytes at the sockets. A cut link resets what is open and
refuses what is new.

Must not know: gRPC, models, tiers.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

READ_BYTES = 16 << 10
BUFFER_BYTES = 256 << 10
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, zero seconds: close() sends RST


@dataclass(frozen=True, slots=True)
class Shape:
    """How a link treats one direction. `bytes_per_s` None is unlimited; delays are one way."""

    bytes_per_s: float | None = None
    delay_s: float = 0.0
    jitter_s: float = 0.0

    def __post_init__(self) -> None:
        if self.bytes_per_s is not None and not self.bytes_per_s > 0:
            raise ValueError(f"bytes_per_s is {self.bytes_per_s}; it must be above 0, or None for no limit")
        if not (self.delay_s >= 0 and self.jitter_s >= 0):
            raise ValueError(f"delay_s {self.delay_s} and jitter_s {self.jitter_s} must be 0 or more")


@dataclass(frozen=True, slots=True)
class Count:
    """Bytes handed on at the sockets since the start; `up` is from the client to the target."""

    up: int
    down: int
    at_s: float

    def since(self, earlier: Count) -> Rates:
        """What flowed between two counts."""
        seconds = max(self.at_s - earlier.at_s, 1e-9)
        up, down = self.up - earlier.up, self.down - earlier.down
        return Rates(up, down, seconds, up / seconds, down / seconds)


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes and bytes per second over `seconds`."""

    up_bytes: int
    down_bytes: int
    seconds: float
    up_bytes_per_s: float
    down_bytes_per_s: float


class TokenBucket:
    """Says how long a piece must wait. Pure: time is passed in, in seconds.

    Allows a burst of `burst_s` seconds' worth of bytes after an idle time.
    """

    def __init__(self, burst_s: float = 0.02) -> None:
        self._burst_s = burst_s
        self._free_at = 0.0

    def leaves_at(self, size: int, bytes_per_s: float | None, now: float) -> float:
        """When a piece of `size` bytes that arrives now has left."""
        if bytes_per_s is None:
            self._free_at = now
            return now
        self._free_at = max(self._free_at, now - self._burst_s) + size / bytes_per_s
        return max(self._free_at, now)


class _Lane:
    """One direction of a link, shared by all of its connections."""

    def __init__(self, shape: Shape, generator: random.Random) -> None:
        self.shape = shape
        self.bytes = 0
        self._bucket = TokenBucket()
        self._generator = generator

    def due(self, size: int, now: float) -> float:
        """When a piece that arrives now comes out at the other end."""
        shape = self.shape
        jitter = self._generator.uniform(0, shape.jitter_s) if shape.jitter_s else 0.0
        return self._bucket.leaves_at(size, shape.bytes_per_s, now) + shape.delay_s + jitter

    def piece_bytes(self) -> int:
        """Read no more at once than a tenth of a second's worth: a rate is felt evenly."""
        rate = self.shape.bytes_per_s
        return READ_BYTES if rate is None else max(256, min(READ_BYTES, int(rate / 10)))


class _Pipe:
    """Carries one direction of one connection: a reader, a bounded buffer, a writer."""

    def __init__(self, lane: _Lane, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._lane, self._reader, self._writer = lane, reader, writer
        self._waiting: deque[tuple[float, bytes]] = deque()
        self.waiting_bytes = 0
        self._changed = asyncio.Condition()

    async def run(self) -> None:
        """Until the sender ends; then says so to the receiver. Raises OSError when a side breaks."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read())
            group.create_task(self._write())

    async def _read(self) -> None:
        last = 0.0
        while data := await self._reader.read(self._lane.piece_bytes()):
            # Never before the piece ahead of it.
            last = max(last, self._lane.due(len(data), asyncio.get_running_loop().time()))
            await self._put(last, data)
        await self._put(last, b"")

    async def _put(self, due: float, data: bytes) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.waiting_bytes + len(data) <= BUFFER_BYTES)
            self._waiting.append((due, data))
            self.waiting_bytes += len(data)
            self._changed.notify_all()

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: bool(self._waiting))
                due, data = self._waiting[0]
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not data:
                break
            self._writer.write(data)
            await self._writer.drain()
            self._lane.bytes += len(data)
            async with self._changed:
                self._waiting.popleft()
                self.waiting_bytes -= len(data)
                self._changed.notify_all()
        if self._writer.can_write_eof():
            self._writer.write_eof()


class Link:
    """A shaped way from a port of 127.0.0.1 to `target_host`:`target_port`.

    Use it as an async context manager, from the loop it runs on. `shape`, `cut` and `restore` act at
    once; pieces already inside keep the time they were given.
    """

    def __init__(self, target_host: str, target_port: int, shape: Shape | None = None, seed: int = 0) -> None:
        self._target = (target_host, target_port)
        shape = shape or Shape()
        generator = random.Random(seed)
        self._up, self._down = _Lane(shape, generator), _Lane(shape, generator)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._pipes: set[_Pipe] = set()
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def is_cut(self) -> bool:
        return self._server is None

    def shape(self, up: Shape, down: Shape | None = None) -> None:
        """Puts a shape in force; `down` is like `up` unless given."""
        self._up.shape, self._down.shape = up, up if down is None else down

    def count(self) -> Count:
        """Bytes handed on so far."""
        return Count(self._up.bytes, self._down.bytes, asyncio.get_running_loop().time())

    def waiting_bytes(self) -> list[int]:
        """What waits inside, for each direction of each connection."""
        return [pipe.waiting_bytes for pipe in self._pipes]

    async def restore(self) -> None:
        """Listens (again); the port stays the same over a cut."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Resets open connections and refuses new ones until `restore`."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            _reset(writer)
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def __aenter__(self) -> Self:
        await self.restore()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.cut()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:  # never: asyncio runs this in a task
            return
        self._connections.add(task)
        try:
            with self._open(writer):
                await self._carry(reader, writer)
        except* (OSError, asyncio.CancelledError):
            pass  # a broken side, or a cut: both ends have been reset
        finally:
            self._connections.discard(task)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        with self._open(far_writer):
            up, down = _Pipe(self._up, reader, far_writer), _Pipe(self._down, far_reader, writer)
            self._pipes |= {up, down}
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(up.run())
                    group.create_task(down.run())
            finally:
                self._pipes -= {up, down}

    @contextlib.contextmanager
    def _open(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        self._writers.add(writer)
        try:
            yield
        except BaseException:
            _reset(writer)
            raise
        finally:
            self._writers.discard(writer)
            writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Ends a connection the hard way, so that the peer sees a broken link and not an orderly end."""
    connection = writer.get_extra_info("socket")
    if connection is not None and not writer.transport.is_closing():
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
