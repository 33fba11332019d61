"""Generate between the processes of one node: frames on a unix socket, without gRPC.

Between a front and its engine every token crosses. gRPC wakes a thread of its own for each message at either end,
which on a small box costs more than the rest of the way; here a message is one write and one read. Everything
else (Describe, EngineControl, health) stays with gRPC, and so does every hop that leaves the node.

    to the engine    Q  seconds left (double), length of the traceparent (2 bytes), traceparent, GenerateRequest
    to the front     E  GenerateEvent        one for each event
                     X  class name and message of a WeirError, with a line break between: the end
                     .  nothing: the end

Every frame is a length (4 bytes, of what follows the kind), its kind (1 byte) and its content; messages are the very
bytes that gRPC would carry. One connection carries one request at a time and is used again after its end. Invariants: a
connection that the front closes cancels the request at once; an engine that goes is Unavailable; the deadline
is kept at both ends; neither side takes a frame over the size limit of gRPC's messages.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from wire import convert, convert_answer
from wire.channel import MAX_MESSAGE_BYTES
from wire.deadline import PASSED, Deadline
from wire.errors import DeadlineExceeded, TooLarge, Unavailable, WeirError, internal_fault, named
from wire.grpc_client import InferenceClient
from wire.messages import GenerateEvent, GenerateRequest
from wire.service import Call, InferenceService

_log = logging.getLogger("weir.wire")

_HEAD = struct.Struct("!Ic")
_ASKED = struct.Struct("!dH")
_ASK, _EVENT, _ERROR, _END = b"Q", b"E", b"X", b"."
_IDLE_CONNECTIONS = 64  # kept for the next requests
_GONE = "the engine's process ended, or cannot be reached; try again"


def stream_path(socket: Path) -> Path:
    """Where an engine whose gRPC listens on `socket` takes frames."""
    return socket.with_suffix(".stream")


async def _frame(reader: asyncio.StreamReader, ahead: bytes = b"") -> tuple[bytes, bytes]:
    """(kind, content); `ahead` was read of it already. Raises IncompleteReadError, ConnectionError, TooLarge."""
    length, kind = _HEAD.unpack(ahead + await reader.readexactly(_HEAD.size - len(ahead)))
    if length > MAX_MESSAGE_BYTES:
        raise TooLarge(f"a message of {length} bytes; at most {MAX_MESSAGE_BYTES}")
    return kind, await reader.readexactly(length) if length else b""


def _framed(kind: bytes, content: bytes = b"") -> bytes:
    return _HEAD.pack(len(content), kind) + content


class StreamServer:
    """Serves a service's `generate` at a path. Made in the event loop."""

    def __init__(self, service: InferenceService, path: Path) -> None:
        self._service, self._path = service, path
        self._connections: set[asyncio.Task[None]] = set()
        self._busy: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Returns once requests are taken. Raises OSError."""
        self._server = await asyncio.start_unix_server(self._serve, self._path)

    async def stop(self, grace_s: float) -> None:
        """Lets running requests finish for a while, then cuts them."""
        if self._server is not None:
            self._server.close()
        if self._busy:
            await asyncio.wait(set(self._busy), timeout=grace_s)
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            ahead: bytes | None = b""
            while ahead is not None:
                _, content = await _frame(reader, ahead)
                ahead = await self._answered(content, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, TooLarge, asyncio.CancelledError):
            return  # the front left, or this process ends
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answered(
        self, content: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bytes | None:
        """What was read of the next request once the answer was sent to its end; None when the front left before."""
        answer = asyncio.create_task(self._answer(content, writer))
        # Nothing comes while an answer goes out, unless the other end has gone.
        gone = asyncio.create_task(reader.read(1))
        self._busy.add(answer)
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            whole = answer.done() and not answer.cancelled() and answer.exception() is None
        finally:
            self._busy.discard(answer)
            for task in (answer, gone):
                task.cancel()
            await asyncio.gather(answer, gone, return_exceptions=True)
        if not whole:
            return None
        return gone.result() if not gone.cancelled() and gone.exception() is None else b""

    async def _answer(self, content: bytes, writer: asyncio.StreamWriter) -> None:
        try:
            seconds, length = _ASKED.unpack_from(content)
            start = _ASKED.size + length
            traceparent = content[_ASKED.size : start].decode("latin-1")
            request = convert.request_in(content[start:])
            events = self._service.generate(request, Call(Deadline.after(seconds), traceparent, "unix:"))
            async with aclosing(events) as answered:
                async for event in answered:
                    writer.write(_framed(_EVENT, convert_answer.event_out(event)))
                    await writer.drain()
        except WeirError as error:
            _refuse(writer, error)
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001 - the server's boundary
            _log.error("unexpected fault in Generate", exc_info=error)
            _refuse(writer, internal_fault())
        else:
            writer.write(_framed(_END))
        await writer.drain()


def _refuse(writer: asyncio.StreamWriter, error: WeirError) -> None:
    writer.write(_framed(_ERROR, f"{type(error).__name__}\n{error.message}".encode("utf-8", "replace")))


class EngineClient(InferenceClient):
    """The engine of this node: `generate` by frames, or by gRPC where it takes none; everything else by gRPC."""

    def __init__(self, socket: Path) -> None:
        """`socket` is where the engine's gRPC listens."""
        super().__init__(f"unix:{socket}")
        self._path = stream_path(socket)
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def generate(self, request: GenerateRequest, call: Call) -> AsyncGenerator[GenerateEvent, None]:
        """See InferenceService. Raises the WeirError the engine raised."""
        call.deadline.check()
        trace = call.traceparent.encode("latin-1", "replace")[:256]
        data = convert.request_out(request).SerializeToString()
        asked = _framed(_ASK, _ASKED.pack(call.deadline.remaining_s(), len(trace)) + trace + data)
        connection = await self._connected()
        if connection is None:
            async with aclosing(super().generate(request, call)) as events:
                async for event in events:
                    yield event
            return
        reader, writer = connection
        # Keeps an engine that hangs from holding a caller past its time; nothing to wake at every token.
        alarm = asyncio.get_running_loop().call_later(max(call.deadline.remaining_s(), 0.0), writer.transport.abort)
        ended = False
        try:
            writer.write(asked)
            while True:
                kind, content = await _frame(reader)
                if kind == _EVENT:
                    yield convert_answer.event_in(content)
                    continue
                ended = True
                if kind == _ERROR:
                    name, _, message = content.decode("utf-8", "replace").partition("\n")
                    raise named(name, message)
                return
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise DeadlineExceeded(PASSED) if call.deadline.expired else Unavailable(_GONE) from error
        finally:
            alarm.cancel()
            if ended and len(self._idle) < _IDLE_CONNECTIONS:
                self._idle.append((reader, writer))
            else:
                writer.close()  # which cancels what is still going on

    async def close(self) -> None:
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()
        await super().close()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """A connection nobody uses; None where the engine takes no frames. Raises Unavailable."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.transport.is_closing():
                return reader, writer
            writer.close()
        try:
            return await asyncio.open_unix_connection(self._path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(_GONE) from error
