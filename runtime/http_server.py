"""An ASGI app served by uvicorn inside an event loop that others use too.

The socket is opened before anything starts, so that a taken address is an OSError with a message rather
than an exit. Signals are left to the process, connections are bounded in number and in how long they may
stand idle or unread (runtime.http_connection), and stopping is bounded too.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from runtime.descriptors import allow_all
from runtime.http_connection import Connection

MAX_CONNECTIONS = 1024
KEEP_ALIVE_S = 30
STOP_S = 5
_BACKLOG = 256  # asyncio accepts as many in one go


class _Listener(socket.socket):
    """Where file descriptors have run out it takes the next connection and drops it.

    asyncio logs a line for each of its tries instead, and tries without an end (CPython 3.11).
    """

    _spare: int | None = None

    def listen(self, backlog: int = _BACKLOG, /) -> None:
        super().listen(backlog)
        self._reserve()

    def accept(self) -> tuple[socket.socket, Any]:
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
            with contextlib.suppress(OSError):
                super().accept()[0].close()
            self._reserve()
        raise BlockingIOError("no file descriptor is left for a connection")

    def close(self) -> None:
        super().close()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _reserve(self) -> None:
        if self._spare is None:
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


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
                http=Connection,
                backlog=_BACKLOG,
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                limit_concurrency=min(max_connections, allow_all() // 2),
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
    listener = _Listener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror}; is another process using it?") from error
    return listener
