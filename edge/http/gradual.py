"""A long JSON document, made and written bit by bit between which others have their turn of the event loop.

Log-probs of a whole answer are megabytes, made of a hundred thousand objects. In a document that is written here an
iterator stands for a list whose entries are made as they are written, and a function for a value that is known only
once what stands before it was written.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_TURN_S = 0.005
_PART = 64 << 10  # characters that are sent at a time
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def pieces(value: Any) -> Iterator[str]:
    """The document's text. Raises ValueError for NaN and what is infinite."""
    if callable(value):
        yield from pieces(value())
    elif isinstance(value, Iterator):
        yield from _listed(value)
    else:
        try:
            text = _encode(value)
        except TypeError:  # something in it is made as it is written
            yield from _opened(value)
        else:
            yield text


def _opened(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield "{"
        for at, (name, inner) in enumerate(value.items()):
            yield f"{',' if at else ''}{_encode(name)}:"
            yield from pieces(inner)
        yield "}"
    elif isinstance(value, list | tuple):
        yield from _listed(iter(value))
    else:
        raise TypeError(f"{type(value).__name__} is not written as JSON")


def _listed(entries: Iterator[Any]) -> Iterator[str]:
    yield "["
    for at, entry in enumerate(entries):
        if at:
            yield ","
        yield from pieces(entry)
    yield "]"


async def written(document: Any) -> list[bytes]:
    """The document in parts. Others have their turn meanwhile."""
    parts: list[bytes] = []
    waiting: list[str] = []
    size, until = 0, time.perf_counter() + _TURN_S
    for piece in pieces(document):
        waiting.append(piece)
        size += len(piece)
        if size >= _PART:
            parts.append("".join(waiting).encode())
            waiting, size = [], 0
        if time.perf_counter() >= until:
            await asyncio.sleep(0)
            until = time.perf_counter() + _TURN_S
    return [*parts, "".join(waiting).encode()]


class JsonParts(Response):
    """An answer that was written in parts, and is sent so."""

    media_type = "application/json"

    def __init__(self, parts: list[bytes], headers: Mapping[str, str]) -> None:
        self._parts = parts
        super().__init__(headers={**headers, "content-length": str(sum(map(len, parts)))})

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for part in self._parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
