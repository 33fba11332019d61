"""An answer as server-sent events, closed the moment its client leaves.

The status line is written when the answer is committed, never before: a fault before that is an
ordinary HTTP error. A fault after it is sent as a last event of OpenAI's error shape, without
[DONE], and the text that was shown stands. Leaving closes the event source at once, which frees the
slot at every tier, and comments keep proxies from cutting a silent stream.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from runtime.http_connection import ABORT
from wire.deadline import Deadline
from wire.errors import Cancelled

T = TypeVar("T")
KEEPALIVE_S = 15.0
_LATE_S = 5.0


async def unless_gone(work: Coroutine[Any, Any, T], receive: Callable[[], Awaitable[Message]]) -> T:
    """The result of `work`, which is cancelled when the client goes. Raises Cancelled then."""
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Cancelled("the client left")
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _gone(receive: Callable[[], Awaitable[Message]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def event(document: Mapping[str, Any]) -> bytes:
    """One event. JSON holds no raw line breaks, so one data line always suffices. Raises ValueError for NaN."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return b"data: " + text.encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
_KEEPALIVE = b": still working\n\n"


class EventStream(Response):
    """Sends what `chunks` yields; `chunks` is closed on every way out."""

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncGenerator[bytes, None], headers: Mapping[str, str], deadline: Deadline) -> None:
        self._chunks = chunks
        self._deadline = deadline
        super().__init__(headers={**headers, "cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        sender = asyncio.create_task(self._send(send))
        watch = asyncio.create_task(_gone(receive))
        try:
            # Past its deadline only a client that does not read can still be here: let it go.
            most = max(self._deadline.remaining_s(), 0.0) + _LATE_S
            done, _ = await asyncio.wait({sender, watch}, timeout=most, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                _cut(scope)
            elif sender.done():
                sender.result()
        finally:
            sender.cancel()
            watch.cancel()
            await asyncio.gather(sender, watch, return_exceptions=True)
            await self._chunks.aclose()

    async def _send(self, send: Send) -> None:
        following: asyncio.Task[bytes] | None = None
        try:
            while True:
                following = following or asyncio.create_task(_next(self._chunks))
                done, _ = await asyncio.wait({following}, timeout=KEEPALIVE_S)
                chunk = following.result() if done else _KEEPALIVE
                following = None if done else following
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except StopAsyncIteration:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)


def _cut(scope: Scope) -> None:
    """Ends the connection without waiting for what its client does not read."""
    abort = scope.get("state", {}).get(ABORT)
    if abort is not None:
        abort()


async def _next(chunks: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(chunks)
