"""An ASGI app served by uvicorn inside an event loop that others use too.

The socket is opened before anything starts, so that a taken address is an OSError with a message rather
than an exit. Signals are left to the process, connections are bounded in number and in how long they may
stand without a whole request head, and stopping is bounded too.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 1024
KEEP_ALIVE_S = 30
STOP_S = 5


class _Protocol(H11Protocol):
    """Closes a connection that brings no new request within KEEP_ALIVE_S to twice that.

    uvicorn's own timer starts after a first answer and stops at any byte, so silent connections, and ones whose
    request head never ends, would hold their places for ever.
    """

    _last_seen: object = None
    _watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look_again()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def _look_again(self) -> None:
        self._last_seen = self.cycle
        self._watch = self.loop.call_later(self.timeout_keep_alive, self._look)

    def _look(self) -> None:
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.cycle is self._last_seen:
            self.transport.close()
        else:
            self._look_again()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A second handler beside the process's own would swallow its signals."""
        yield


class HttpServer:
    """Serves `app` at `address` (host:port; port 0 for any free one). Raises OSError when it is taken."""

    def __init__(
        self, app: Any, address: str, max_connections: int = MAX_CONNECTIONS, keep_alive_s: int = KEEP_ALIVE_S
    ) -> None:
        host, _, port = address.rpartition(":")
        self._socket = _listen(host.strip("[]"), int(port))
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        self._server = _Server(
            uvicorn.Config(
                app,
                http=_Protocol,
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                limit_concurrency=max_connections,
                timeout_keep_alive=keep_alive_s,
                timeout_graceful_shutdown=STOP_S,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns once requests are accepted."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise OSError(f"the HTTP server at {self.address} ended while starting")
            await asyncio.sleep(0.005)

    async def wait(self) -> None:
        """Returns when the server has ended; raises what ended it."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def stop(self) -> None:
        """Lets running requests finish for a few seconds, then cuts them."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._socket.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol by its name: asyncio turns Nagle's delay off only where a socket says that it is TCP's, and with it a
    # client that acknowledges late waits 40 ms for every second write.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(512)
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror}; is another process using it?") from error
    return listener
