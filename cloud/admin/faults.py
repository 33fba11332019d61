"""One shape for every error the API answers: {"error": {"type", "message"}}, the type from wire.errors.

A version conflict also says the version the key has: {"error": {…, "current": …}}.
"""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from cloud.state.base import VersionConflict
from wire.errors import Conflict, InvalidRequest, NotFound, Unavailable, WeirError, http_status

_log = logging.getLogger(__name__)


class Fault(BaseModel):
    """What went wrong and what to do about it."""

    type: str
    message: str
    current: int | None = None


class FaultBody(BaseModel):
    error: Fault


def body(error: WeirError) -> dict[str, Any]:
    """The JSON document of an error."""
    kind = type(error).__name__
    if isinstance(error, VersionConflict):
        return {"error": {"type": Conflict.__name__, "message": error.message, "current": error.current}}
    if isinstance(error, Unavailable):
        kind = Unavailable.__name__
    return {"error": {"type": kind, "message": error.message}}


def install(app: FastAPI) -> None:
    """Answers every error of `app` in the one shape."""
    app.add_exception_handler(WeirError, _weir)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


async def _weir(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, WeirError)
    headers = {"retry-after": "1"} if isinstance(error, Unavailable) else None
    return JSONResponse(body(error), http_status(error), headers)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()[:5]]
    return await _weir(request, InvalidRequest("; ".join(faults)))


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return await _weir(request, NotFound(f"there is no {what}; see /openapi.json"))
    name = InvalidRequest.__name__ if error.status_code < 500 else WeirError.__name__
    document = {"error": {"type": name, "message": f"{what}: {error.detail}"}}
    return JSONResponse(document, error.status_code, error.headers)


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    # The server logs the exception itself; its text may hold what callers must not see.
    _log.error("%s %s failed: %s", request.method, request.url.path, type(error).__name__)
    return await _weir(request, WeirError("an internal error; the admin's log has the details"))
