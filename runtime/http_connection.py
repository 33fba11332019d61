"""One HTTP connection, which holds its place only for as long as something goes on in it.

Looked at every KEEP_ALIVE_S, a connection that brought no new request is closed, and one whose client takes nothing of
what waits for it is cut: closing would wait for a client that never reads. Where all places are taken, a newcomer gets
that of whoever has been idle longest; while all are at work it is told to come back.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

ABORT = "weir.abort"  # in an ASGI scope's `state`: cuts the connection at once, whatever is unsent
_LEAST_READ = 4096  # bytes between two looks; who reads less reads nothing
_SETTLED_S = 0.5  # a connection this young may have sent a request that nobody has looked at yet
_FULL = json.dumps(
    {
        "error": {
            "message": "all connections of this server are at work; try again",
            "type": "server_error",
            "param": None,
            "code": "overloaded",
        }
    }
).encode()
_FULL_HEADERS = [
    (b"content-type", b"application/json"),
    (b"content-length", str(len(_FULL)).encode()),
    (b"retry-after", b"1"),
    (b"connection", b"close"),
]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A connection at one look. `held`: whatever waits for the client, nothing is added to it meanwhile."""

    cycle: object
    idle: bool
    paused: bool
    held: bool
    unsent: int


class Connection(H11Protocol):
    """uvicorn's connection, watched.

    uvicorn's own timer starts after a first answer, stops at any byte and closes without an end, so silent connections,
    ones whose request head never ends and ones that are not read would hold their places for ever.
    """

    _seen: _Seen | None = None
    _watch: asyncio.TimerHandle | None = None
    _resumed = False
    _idle_since = 0.0

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        # uvicorn would refuse whoever comes in its own words; see connection_made.
        self._most, self.limit_concurrency = self.limit_concurrency, None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self.app_state = {**self.app_state, ABORT: transport.abort}
        if self._most is not None and len(self.connections) > self._most:
            self._make_room(len(self.connections) - self._most)
            if len(self.connections) > self._most:
                self.app = _full
        self._look_again(self._look_at())

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        self._resumed = True
        super().resume_writing()

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        super().on_response_complete()

    @property
    def idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _look_at(self) -> _Seen:
        paused = self.flow.write_paused
        held = self.idle or paused or self.transport.is_closing()
        return _Seen(self.cycle, self.idle, paused, held, self.transport.get_write_buffer_size())

    def _look_again(self, seen: _Seen) -> None:
        self._seen, self._resumed = seen, False
        self._watch = self.loop.call_later(self.timeout_keep_alive, self._look)

    def _look(self) -> None:
        last, now = self._seen, self._look_at()
        if last is not None and self._unread(last, now):
            self.transport.abort()
        elif now.idle and not now.unsent and last is not None and now.cycle is last.cycle:
            self.transport.close()
        self._look_again(now)

    def _unread(self, last: _Seen, now: _Seen) -> bool:
        """Whether the client took next to nothing of what waited for it at both looks."""
        added = self._resumed or not last.held or (now.cycle is not last.cycle and not last.paused)
        return now.held and not added and now.unsent > max(last.unsent - _LEAST_READ, 0)

    def _make_room(self, places: int) -> None:
        """Cuts the connections that have been idle longest; ones whose answers are still being read come last."""
        settled = self.loop.time() - _SETTLED_S
        idle = [
            (other.transport.get_write_buffer_size() > 0, other._idle_since, id(other), other)
            for other in self.connections
            if isinstance(other, Connection) and other.idle and other._idle_since < settled
        ]
        for *_, other in sorted(idle)[:places]:
            other.transport.abort()
            self.connections.discard(other)


async def _full(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 503, "headers": _FULL_HEADERS})
    await send({"type": "http.response.body", "body": _FULL, "more_body": False})
