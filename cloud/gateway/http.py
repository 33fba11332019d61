"""The gateway's HTTP port: whether it lives and whether it can answer.

GET /healthz    200 while the process runs
GET /readyz     200 when a request could be answered now, else 503; the body says why
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from runtime.version import weir_version
from wire.deadline import Deadline
from wire.service import Call, InferenceService

_TIMEOUT_S = 5.0


def build_app(service: InferenceService, node: str) -> FastAPI:
    """The HTTP face of a gateway."""
    app = FastAPI(title="Weir gateway", version=weir_version(), docs_url=None, redoc_url=None)

    @app.get("/healthz")
    async def healthz() -> JSONResponse:
        return JSONResponse({"status": "ok", "node": node})

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        description = await service.describe(Call(Deadline.after(_TIMEOUT_S)))
        body = {
            "ready": description.ready,
            "reason": description.not_ready_reason,
            "models": [info.name for info in description.models],
            "active_releases": dict(description.active_releases),
        }
        return JSONResponse(body, 200 if description.ready else 503)

    return app


class HttpServer:
    """uvicorn inside a process that handles its own signals and binds its own port."""

    def __init__(self, app: FastAPI, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host.strip("[]"), int(port))
        self._listener: socket.socket | None = None
        self._server = _Server(
            uvicorn.Config(app, log_level="warning", access_log=False, ws="none", timeout_graceful_shutdown=2)
        )

    def listen(self) -> None:
        """Binds the port. Raises OSError; uvicorn itself would exit the process."""
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(self._address)
        except OSError as error:
            listener.close()
            host, port = self._address
            raise OSError(f"cannot listen on {host}:{port}: {error}; is another process using it?") from error
        self._listener = listener

    async def run(self) -> None:
        """Serves the bound port until `stop`."""
        if self._listener is None:
            raise RuntimeError("listen() comes first")
        await self._server.serve([self._listener])

    def stop(self) -> None:
        """Lets `run` return soon."""
        self._server.should_exit = True

    def close(self) -> None:
        """Gives the port back."""
        if self._listener is not None:
            self._listener.close()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
