"""An OpenAI-compatible endpoint on a real socket, that can be told to misbehave down to the byte.

Speaks HTTP/1.1 by hand (h11 reads the requests), since what it must be able to send no framework lets out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import h11

Send = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True)
class Asked:
    """One request as it arrived."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True)
class Raw:
    """An answer: `parts` are sent one by one, `pause_s` apart; `hang` keeps the connection open after them.

    `silent` sends nothing at all, not even a head.
    """

    status: int = 200
    parts: tuple[bytes, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "text/event-stream"
    pause_s: float = 0.0
    hang: bool = False
    silent: bool = False


def event(document: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def chunk(text: str | None = None, finish: str | None = None, **delta: Any) -> bytes:
    given = {**({} if text is None else {"content": text}), **delta}
    return event({"choices": [{"index": 0, "delta": given, "finish_reason": finish}]})


USAGE = event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}})
DONE = b"data: [DONE]\n\n"


def fault(status: int, message: str, headers: Mapping[str, str] | None = None, **fields: Any) -> Raw:
    body = json.dumps({"error": {"message": message, "type": "x", "param": None, "code": None, **fields}}).encode()
    return Raw(status, (body,), headers or {}, "application/json")


@dataclass
class OpenAiEndpoint:
    """Answers `words` to whoever has the `key`. `next` are answers to give first, `models` what it lists."""

    words: tuple[str, ...] = ("one", " two", " three")
    key: str = ""
    models: tuple[dict[str, Any], ...] = ({"id": "big"},)
    step_s: float = 0.0
    next: list[Raw] = field(default_factory=list)
    listing: Raw | None = None
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    running: int = 0
    left: int = 0
    url: str = ""
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def generations(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.method == "POST"]

    @asynccontextmanager
    async def running_at(self) -> AsyncIterator[OpenAiEndpoint]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        try:
            yield self
        finally:
            server.close()
            async with asyncio.timeout(2):
                while self._open:
                    for writer in self._open:
                        writer.transport.abort()
                    await asyncio.sleep(0.001)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError, h11.RemoteProtocolError):
            while (asked := await _read(reader)) is not None:
                self.asked.append(asked)
                await self._answer(asked, reader, writer)
        writer.close()
        self._open.discard(writer)

    async def _answer(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raw = self._raw(asked)
        self.running += 1
        gone = asyncio.create_task(_gone(reader))
        sending = asyncio.create_task(_send(raw, writer))
        try:
            await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                self.left += 1
                raise ConnectionResetError
            await sending
        finally:
            self.running -= 1
            for task in (gone, sending):
                task.cancel()
            await asyncio.gather(gone, sending, return_exceptions=True)

    def _raw(self, asked: Asked) -> Raw:
        if self.key and asked.headers.get("authorization") != f"Bearer {self.key}":
            return fault(401, f"no such key: {asked.headers.get('authorization')}", code="invalid_api_key")
        if asked.method == "GET":
            listed = json.dumps({"object": "list", "data": list(self.models)}).encode()
            return self.listing or Raw(200, (listed,), content_type="application/json")
        if self.next:
            return self.next.pop(0)
        parts = (*(chunk(word) for word in self.words), chunk(finish="stop"), USAGE, DONE)
        return Raw(200, parts, pause_s=self.step_s)


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    connection = h11.Connection(h11.SERVER)
    head: h11.Request | None = None
    body = b""
    while True:
        found = connection.next_event()
        if found is h11.NEED_DATA:
            data = await reader.read(1 << 16)
            if not data and head is None:
                return None
            connection.receive_data(data)
        elif isinstance(found, h11.Request):
            head = found
        elif isinstance(found, h11.Data):
            body += bytes(found.data)
        elif isinstance(found, h11.EndOfMessage):
            assert head is not None
            headers = {name.decode(): value.decode() for name, value in head.headers}
            return Asked(head.method.decode(), head.target.decode(), headers, json.loads(body) if body else None)
        else:
            return None


async def _gone(reader: asyncio.StreamReader) -> None:
    """Returns when the client has left. Reads nothing: it may be the next request."""
    while not reader.at_eof() and reader.exception() is None:
        await asyncio.sleep(0.005)


async def _send(raw: Raw, writer: asyncio.StreamWriter) -> None:
    """Chunked; one that does not hang and has no end of chunks of its own ends as HTTP wants it."""
    while raw.silent:
        await asyncio.sleep(0.05)
    head = {"content-type": raw.content_type, "transfer-encoding": "chunked", **raw.headers}
    lines = [f"HTTP/1.1 {raw.status} X", *(f"{name}: {value}" for name, value in head.items()), "", ""]
    writer.write("\r\n".join(lines).encode())
    for part in raw.parts:
        await asyncio.sleep(raw.pause_s)
        if part == b"CUT":
            writer.transport.abort()
            return
        writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        await writer.drain()
    while raw.hang:
        await asyncio.sleep(0.05)
    writer.write(b"0\r\n\r\n")
    await writer.drain()
