"""The REST routes of the Open Inference Protocol, under /v2 of a node's HTTP address.

Faults are `{"error": "..."}` with the status of wire.errors. A client that leaves ends the work.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

from edge.http import errors
from edge.http.body import parse_json, read_body, refused
from edge.http.calls import call_of
from edge.http.settings import HttpSettings
from edge.http.sse import unless_gone
from edge.openinference.rest_body import request_in, response_out
from wire.deadline import Deadline
from wire.errors import InvalidRequest, NotFound, Unavailable, WeirError, http_status
from wire.openinference.messages import OpenInference, TensorMetadata
from wire.service import Call

_LENGTH = "inference-header-content-length"
_ASK_S = 5.0


def add_open_inference(app: FastAPI, service: OpenInference, settings: HttpSettings) -> None:
    """Adds the routes to a node's application."""
    face = _Rest(service, settings)
    routes: list[tuple[str, str, Callable[..., Awaitable[Response]]]] = [
        ("GET", "/v2", face.server),
        ("GET", "/v2/health/live", face.live),
        ("GET", "/v2/health/ready", face.ready),
    ]
    for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        routes += [
            ("GET", path, face.model),
            ("GET", f"{path}/ready", face.model_ready),
            ("POST", f"{path}/infer", face.infer),
        ]
    for method, path, serve in routes:
        app.add_api_route(path, _guarded(serve), methods=[method], response_model=None)
    app.add_api_route("/v2/{rest:path}", _guarded(_nothing), methods=["GET", "POST"], response_model=None)


def _guarded(serve: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    async def guarded(request: Request) -> Response:
        try:
            return await serve(request)
        except WeirError as error:
            return refused(error, {"error": error.message}, http_status(error), errors.headers(error))

    return guarded


async def _nothing(request: Request) -> Response:
    raise NotFound(f"{request.method} {request.url.path[:200]} is not served here; see docs/openinference.md")


class _Rest:
    def __init__(self, service: OpenInference, settings: HttpSettings) -> None:
        self._service, self._settings = service, settings

    async def live(self, _request: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(self, _request: Request) -> Response:
        ready = await self._service.server_ready(_soon())
        return JSONResponse({"ready": ready}, 200 if ready else http_status(Unavailable()))

    async def server(self, _request: Request) -> Response:
        told = await self._service.server_metadata(_soon())
        return JSONResponse({"name": told.name, "version": told.version, "extensions": list(told.extensions)})

    async def model(self, request: Request) -> Response:
        told = await self._service.model_metadata(*_named(request), _soon())
        return JSONResponse(
            {
                "name": told.name,
                "versions": list(told.versions),
                "platform": told.platform,
                "inputs": [_tensor(entry) for entry in told.inputs],
                "outputs": [_tensor(entry) for entry in told.outputs],
            }
        )

    async def model_ready(self, request: Request) -> Response:
        name, version = _named(request)
        ready = await self._service.model_ready(name, version, _soon())
        return JSONResponse({"name": name, "ready": ready}, 200 if ready else http_status(Unavailable()))

    async def infer(self, request: Request) -> Response:
        settings = self._settings
        if request.headers.get("content-encoding", "identity") != "identity":
            raise InvalidRequest("compressed bodies are not taken; send it without content-encoding")
        body = await read_body(request, settings.max_body_bytes, settings.default_deadline_s)
        document, binary = _parts(body, request.headers.get(_LENGTH, ""))
        asked, in_binary = request_in(*_named(request), document, binary)
        answer = await unless_gone(self._service.infer(asked, call_of(request, settings)), request.receive)
        head, tail = response_out(answer, in_binary)
        if not tail:
            return Response(head, media_type="application/json")
        return Response(head + tail, media_type="application/octet-stream", headers={_LENGTH: str(len(head))})


def _soon() -> Call:
    return Call(Deadline.after(_ASK_S))


def _named(request: Request) -> tuple[str, str]:
    return request.path_params["name"], request.path_params.get("version", "")


def _parts(body: bytes, length: str) -> tuple[Any, bytes]:
    """The JSON of a body and the binary part behind it. Raises InvalidRequest or TooLarge."""
    if not length:
        return parse_json(body), b""
    if not length.isdecimal() or len(length) > 12 or int(length) > len(body):
        raise InvalidRequest(f"{_LENGTH} is {length!r:.80}; the body has {len(body)} bytes")
    return parse_json(body[: int(length)]), body[int(length) :]


def _tensor(entry: TensorMetadata) -> dict[str, Any]:
    return {"name": entry.name, "datatype": entry.datatype, "shape": list(entry.shape)}
