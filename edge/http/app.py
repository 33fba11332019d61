"""The HTTP routes of a node: chat completions, models, health, readiness.

`service` is any InferenceService. Nothing here decides anything about a request; a fault becomes an
error in OpenAI's shape, and a client that leaves closes the answer at every tier.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from edge.http import chat, errors
from edge.http.body import Refusal, read_json
from edge.http.schema import ChatRequest, parse
from edge.http.sse import DONE, EventStream, event, unless_gone
from wire.deadline import Deadline
from wire.errors import TooLarge, WeirError, http_status
from wire.messages import Committed, Delta, Final, GenerateEvent, GenerateRequest
from wire.service import Call, InferenceService

_DESCRIBE_S = 5.0


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Bounds and defaults of the HTTP face."""

    default_deadline_s: float = 30.0
    max_deadline_s: float = 600.0
    max_body_bytes: int = 4 << 20
    streaming_rule: str = "prefix:8"


def make_app(service: InferenceService, settings: HttpSettings, wall_clock: Callable[[], float] = time.time) -> FastAPI:
    """The ASGI application over `service`."""
    app = FastAPI(title="Weir edge node", docs_url=None, redoc_url=None, openapi_url=None)
    face = _Face(service, settings, wall_clock)
    app.add_api_route("/v1/chat/completions", face.complete, methods=["POST"], response_model=None)
    app.add_api_route("/v1/models", face.models, methods=["GET"], response_model=None)
    app.add_api_route("/v1/models/{name:path}", face.model, methods=["GET"], response_model=None)
    app.add_api_route("/healthz", _alive, methods=["GET"], response_model=None)
    app.add_api_route("/readyz", face.ready, methods=["GET"], response_model=None)
    app.add_exception_handler(WeirError, _fault)
    app.add_exception_handler(HTTPException, _no_route)
    app.add_exception_handler(Exception, _unexpected)
    return app


async def _fault(_request: Request, error: Exception) -> Response:
    if not isinstance(error, WeirError):
        raise error
    kind = Refusal if isinstance(error, TooLarge) else JSONResponse
    return kind(errors.body(error), http_status(error), errors.headers(error))


async def _unexpected(_request: Request, _error: Exception) -> Response:
    """The server logs the fault with its trace after this; its text stays here."""
    told = WeirError("an internal fault was logged on the server; the request was not answered")
    return JSONResponse(errors.body(told), http_status(told))


async def _no_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    message = f"{request.method} {request.url.path} is not served here; see /v1/chat/completions and /v1/models"
    return JSONResponse(
        {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}, status
    )


async def _alive() -> Response:
    return JSONResponse({"status": "ok"})


class _Face:
    """The routes that ask the service."""

    def __init__(self, service: InferenceService, settings: HttpSettings, wall_clock: Callable[[], float]) -> None:
        self._service = service
        self._settings = settings
        self._wall_clock = wall_clock

    async def ready(self) -> Response:
        try:
            description = await self._service.describe(Call(Deadline.after(_DESCRIBE_S)))
            ready, why = description.ready, description.not_ready_reason
        except WeirError as error:
            ready, why = False, error.message
        return JSONResponse({"ready": ready, "reason": why}, 200 if ready else 503)

    async def models(self) -> Response:
        return JSONResponse({"object": "list", "data": await self._models()})

    async def model(self, name: str) -> Response:
        for entry in await self._models():
            if entry["id"] == name:
                return JSONResponse(entry)
        document = {"message": f"no model {name!r} here", "type": "invalid_request_error", "param": "model"}
        return JSONResponse({"error": {**document, "code": "model_not_found"}}, 404)

    async def _models(self) -> list[dict[str, Any]]:
        description = await self._service.describe(Call(Deadline.after(_DESCRIBE_S)))
        return [
            {
                "id": model.name,
                "object": "model",
                "created": 0,
                "owned_by": "weir",
                "weir": {
                    "release": model.release,
                    "precision": model.precision,
                    "weight_digest": model.weight_digest,
                    "context_length": model.context_length,
                    "max_output_tokens": model.max_output_tokens,
                    "capabilities": list(model.capabilities),
                },
            }
            for model in description.models
        ]

    async def complete(self, request: Request) -> Response:
        settings = self._settings
        body = parse(await read_json(request, settings.max_body_bytes, settings.default_deadline_s))
        headers = chat.Headers(request.headers.get("x-weir-constraint", ""), request.headers.get("idempotency-key", ""))
        asked = chat.to_request(body, headers, uuid.uuid4().hex, settings.streaming_rule)
        seconds = chat.deadline_s(
            body.weir.deadline_ms,
            request.headers.get("x-weir-deadline-ms", ""),
            settings.default_deadline_s,
            settings.max_deadline_s,
        )
        peer = request.client.host if request.client else ""
        call = Call(Deadline.after(seconds), request.headers.get("traceparent", ""), peer)
        shape = chat.Shape(asked.request_id, int(self._wall_clock()), body.model)
        if body.stream:
            return await self._stream(request, body, asked, call, shape)
        text, final = await unless_gone(self._whole(asked, call), request.receive)
        return JSONResponse(shape.completion(text, final), headers=chat.headers(final))

    async def _whole(self, asked: GenerateRequest, call: Call) -> tuple[str, Final]:
        texts: list[str] = []
        async with aclosing(_generator(self._service.generate(asked, call))) as events:
            async for item in events:
                if isinstance(item, Delta):
                    texts.append(item.text)
                elif isinstance(item, Final):
                    return "".join(texts), item
        raise WeirError("the answer ended without saying how")

    async def _stream(
        self, request: Request, body: ChatRequest, asked: GenerateRequest, call: Call, shape: chat.Shape
    ) -> Response:
        events = _generator(self._service.generate(asked, call))
        first = await unless_gone(_next(events), request.receive)
        headers: Mapping[str, str] = {}
        if isinstance(first, Committed):
            headers = chat.headers(first)
        usage = body.stream_options is not None and body.stream_options.include_usage
        return EventStream(_chunks(first, events, shape, usage), headers, call.deadline)


def _generator(events: AsyncIterator[GenerateEvent]) -> AsyncGenerator[GenerateEvent, None]:
    if not isinstance(events, AsyncGenerator):
        raise TypeError("an InferenceService's generate must be an async generator")
    return events


async def _next(events: AsyncGenerator[GenerateEvent, None]) -> GenerateEvent:
    return await anext(events)


async def _chunks(
    first: GenerateEvent, events: AsyncGenerator[GenerateEvent, None], shape: chat.Shape, include_usage: bool
) -> AsyncGenerator[bytes, None]:
    """The events after `first` as server-sent events; closes `events`."""
    async with aclosing(events):
        yield event(shape.first())
        try:
            for chunk in _piece(first, shape, include_usage):
                yield chunk
            async for item in events:
                for chunk in _piece(item, shape, include_usage):
                    yield chunk
            yield DONE
        except WeirError as error:
            yield event(errors.body(error))


def _piece(item: GenerateEvent, shape: chat.Shape, include_usage: bool) -> list[bytes]:
    match item:
        case Delta(text=text) if text:
            return [event(shape.piece(text))]
        case Final():
            return [event(chunk) for chunk in shape.last(item, include_usage)]
    return []
