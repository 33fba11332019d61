"""The HTTP routes of a node: chat completions, completions, models, health, readiness.

`service` is any InferenceService. Nothing here decides anything about a request; a fault becomes an
error in OpenAI's shape, and a client that leaves closes the answer at every tier.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from edge.http import chat, completion_schema, completions, errors, schema
from edge.http.body import read_json, refused
from edge.http.calls import call_of, headers_of
from edge.http.choices import Answer, Choices, copies, total
from edge.http.fields import Common
from edge.http.gradual import JsonParts, written
from edge.http.provenance import all_provenance, headers
from edge.http.settings import HttpSettings
from edge.http.sse import DONE, EventStream, event, unless_gone
from wire.deadline import Deadline
from wire.errors import WeirError, internal_fault
from wire.messages import Delta, Final, GenerateRequest, Usage
from wire.service import Call, InferenceService

_log = logging.getLogger("weir.edge.http")
_DESCRIBE_S = 5.0


def make_app(service: InferenceService, settings: HttpSettings, wall_clock: Callable[[], float] = time.time) -> FastAPI:
    """The ASGI application over `service`."""
    app = FastAPI(title="Weir edge node", docs_url=None, redoc_url=None, openapi_url=None)
    face = _Face(service, settings, wall_clock)
    app.add_api_route("/v1/chat/completions", face.complete, methods=["POST"], response_model=None)
    app.add_api_route("/v1/completions", face.complete_text, methods=["POST"], response_model=None)
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
    return refused(error, errors.body(error), errors.status(error), errors.headers(error))


async def _unexpected(_request: Request, _error: Exception) -> Response:
    """The server logs the fault with its trace after this; its text stays here."""
    told = internal_fault()
    return JSONResponse(errors.body(told), errors.status(told))


async def _no_route(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    served = "/v1/chat/completions, /v1/completions and /v1/models"
    message = f"{request.method} {request.url.path} is not served here; see {served}"
    document = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return JSONResponse({"error": document}, error.status_code, error.headers)


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
                    "tasks": list(model.tasks),
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
        """POST /v1/chat/completions."""
        body = schema.parse(await self._document(request))
        request_id = uuid.uuid4().hex
        asked = chat.to_request(body, headers_of(request), request_id, self._settings.streaming_rule)
        shape = chat.Shape(request_id, self._now(), body.model, body.top_logprobs if body.logprobs else None)
        return await self._answer(request, body, copies(asked, body.n), shape, chat.Stream(shape, body.n))

    async def complete_text(self, request: Request) -> Response:
        """POST /v1/completions."""
        body = completion_schema.parse(await self._document(request))
        request_id = uuid.uuid4().hex
        asked = completions.to_requests(body, headers_of(request), request_id, self._settings.streaming_rule)
        echoes = tuple(one.prompt if body.echo else "" for one in asked)
        shape = completions.Shape(request_id, self._now(), body.model, echoes, body.logprobs)
        return await self._answer(request, body, asked, shape, completions.Stream(shape, len(asked)))

    async def _document(self, request: Request) -> Any:
        return await read_json(request, self._settings.max_body_bytes, self._settings.default_deadline_s)

    def _now(self) -> int:
        return int(self._wall_clock())

    async def _answer(
        self, request: Request, body: Common, asked: Sequence[GenerateRequest], shape: _Shape, chunks: _Chunks
    ) -> Response:
        call = call_of(request, self._settings, body.weir.deadline_ms)
        choices = Choices(self._service, asked, call)
        if not body.stream:
            return await unless_gone(_whole(choices, shape, body.n), request.receive)
        firsts = await unless_gone(choices.first(), request.receive)
        usage = body.stream_options is not None and body.stream_options.include_usage
        return EventStream(_sent(choices, chunks, body.n, usage), headers(firsts), call.deadline)


class _Shape(Protocol):
    """A whole body's form: chat.Shape or completions.Shape."""

    def completion(self, answers: Sequence[Answer], tokens: Usage) -> dict[str, Any]: ...


class _Chunks(Protocol):
    """A stream's form: chat.Stream or completions.Stream."""

    n: int

    def begin(self) -> list[dict[str, Any]]: ...
    def piece(self, index: int, delta: Delta) -> list[dict[str, Any]]: ...
    def end(self, index: int, final: Final) -> list[dict[str, Any]]: ...
    def usage(self, tokens: Usage) -> dict[str, Any]: ...


async def _whole(choices: Choices, shape: _Shape, per_prompt: int) -> Response:
    answers = await choices.whole()
    finals = [answer.end for answer in answers]
    document = shape.completion(answers, total([final.usage for final in finals], per_prompt))
    return JsonParts(await written(document), headers(finals))


async def _sent(choices: Choices, chunks: _Chunks, per_prompt: int, include_usage: bool) -> AsyncGenerator[bytes, None]:
    """The answers as server-sent events, `weir` in the last of them; closes `choices`."""
    finals: dict[int, Final] = {}
    unknown = {"usage": None} if include_usage else {}  # till the last chunk, as OpenAI has it
    try:
        for chunk in chunks.begin():
            yield event({**chunk, **unknown})
        async with aclosing(choices.events()) as events:
            async for index, item in events:
                if isinstance(item, Delta):
                    for chunk in chunks.piece(index, item):
                        yield event({**chunk, **unknown})
                elif isinstance(item, Final):
                    finals[index] = item
                    for chunk in _closing(chunks, index, finals, per_prompt, include_usage):
                        yield event({**unknown, **chunk})
        if len(finals) < chunks.n:
            raise WeirError("the answer ended without saying how")
        yield DONE
    except WeirError as error:
        yield event(errors.body(error))
    except Exception as error:  # noqa: BLE001 - the server's boundary, once the status line is out
        _log.error("unexpected fault in a stream", exc_info=error)
        yield event(errors.body(internal_fault()))
    finally:
        await choices.aclose()


def _closing(
    chunks: _Chunks, index: int, finals: dict[int, Final], per_prompt: int, include_usage: bool
) -> list[dict[str, Any]]:
    """The last chunks of one answer, and after the last answer what is said of all."""
    told = chunks.end(index, finals[index])
    if len(finals) < chunks.n:
        return told
    ordered = [finals[at] for at in range(chunks.n)]
    if include_usage:
        told.append(chunks.usage(total([final.usage for final in ordered], per_prompt)))
    return [*told[:-1], {**told[-1], "weir": all_provenance(ordered)}]
