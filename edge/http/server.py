"""uvicorn inside an event loop that others use too: no signal handlers of its own, any free port.

The listening socket is opened before anything starts, so that a taken address is an OSError with a
message rather than an exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

_STOP_S = 5


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the front's business; a second handler would swallow them."""
        yield


class HttpServer:
    """Serves an ASGI app at `address` (host:port, port 0 for any free one)."""

    def __init__(self, app: FastAPI, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = _listen(host.strip("[]"), int(port))
        config = uvicorn.Config(
            app,
            lifespan="off",
            access_log=False,
            log_config=None,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=_STOP_S,
            server_header=False,
        )
        self._server = _Uvicorn(config)
        self._task: asyncio.Task[None] | None = None
        self.address = f"{host}:{self._socket.getsockname()[1]}"

    async def start(self) -> None:
        """Returns once requests are accepted."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise OSError(f"the HTTP server on {self.address} ended at once")
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Finishes running requests within a few seconds, then cuts them."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._socket.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(512)
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror}; is another process using it?") from error
    return listener
