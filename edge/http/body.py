"""Reads a request body within bounds, and answers one that is not read to its end.

A body over the limit is never kept. What a client still sends is thrown away for a short, bounded
while, because closing a socket with unread data resets it and the client would lose the answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from edge.http import intake
from edge.http.fields import FieldRefused
from edge.http.json_values import more_values_than, unclosed
from runtime import foreign_json
from wire.errors import Cancelled, InvalidRequest, TooLarge, WeirError

_DISCARD_SECONDS = 2.0
_DISCARD_BYTES = 256 << 20
# Building and checking a body field by field takes time and memory for each of them, in the event loop.
_MOST_VALUES = 20_000
_DEEPEST = 100


async def read_json(request: Request, max_bytes: int, timeout_s: float) -> Any:
    """The body as a JSON document. Raises TooLarge, Crowded, InvalidRequest or Cancelled."""
    return parse_json(await read_body(request, max_bytes, timeout_s))


async def read_body(request: Request, max_bytes: int, timeout_s: float) -> bytes:
    """The body as it came. Raises TooLarge, Crowded, InvalidRequest or Cancelled."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise TooLarge(f"the body has {declared} bytes; at most {max_bytes}")
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_s):
            with intake.PROCESS.body(intake.WHOLE_BODIES * max_bytes) as share:
                async for part in request.stream():
                    size += len(part)
                    if size > max_bytes:
                        raise TooLarge(f"the body has more than {max_bytes} bytes, which is the most")
                    share.grow(size)
                    parts.append(part)
    except ClientDisconnect as error:
        raise Cancelled("the client left before its request was read") from error
    except TimeoutError as error:
        raise InvalidRequest(f"the body did not arrive within {timeout_s:.0f} s") from error
    return b"".join(parts)


def parse_json(data: bytes) -> Any:
    """Raises InvalidRequest, or TooLarge for more values than anybody needs to send."""
    if more_values_than(data, _MOST_VALUES):
        raise _nested() if unclosed(data) > _DEEPEST else _many()
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not UTF-8: byte {error.start} cannot be decoded") from error
    try:
        document = foreign_json.read(text)
    except foreign_json.TooDeep as error:
        raise _nested() from error
    except foreign_json.BadNumber as error:
        raise FieldRefused(str(error), error.path or None, "invalid_value") from error
    except foreign_json.NotJson as error:
        raise InvalidRequest(f"the body is not JSON that can be read: {error}") from error
    _check_size(document)
    # JSON can spell half a surrogate pair, which is no text and has no UTF-8.
    if b"\\ud" in data or b"\\uD" in data:
        _refuse_broken_text(document)
    return document


def _refuse_broken_text(document: Any) -> None:
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest("the body holds half a surrogate pair (\\ud800 to \\udfff), which is not text") from error


def _check_size(document: Any) -> None:
    left, waiting = _MOST_VALUES, [(document, 0)]
    while waiting:
        value, depth = waiting.pop()
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        left -= len(inside)
        if left < 0:
            raise _many()
        if depth > _DEEPEST:
            raise _nested()
        waiting.extend((part, depth + 1) for part in inside)


def _many() -> TooLarge:
    return TooLarge(f"the body holds more than {_MOST_VALUES} values, which is the most")


def _nested() -> InvalidRequest:
    return InvalidRequest(f"the body is nested too deeply: more than {_DEEPEST} levels")


def refused(error: WeirError, document: Any, status: int, headers: Mapping[str, str]) -> Response:
    """The answer that is an error."""
    kind = Refusal if isinstance(error, TooLarge | intake.Crowded) else JSONResponse
    return kind(document, status, headers)


class Refusal(JSONResponse):
    """An error that may come before the body was read: says it, then lets the client finish sending."""

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        discarded = 0
        try:
            async with asyncio.timeout(_DISCARD_SECONDS):
                while discarded < _DISCARD_BYTES:
                    message = await receive()
                    discarded += len(message.get("body", b""))
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        break
        except TimeoutError:
            pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})
