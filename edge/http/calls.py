"""What an HTTP request says beside its body, the same for every route: its call, and what its headers ask."""

from __future__ import annotations

from starlette.requests import Request

from edge.http import asking
from edge.http.asking import Headers
from edge.http.settings import HttpSettings
from wire.deadline import Deadline
from wire.service import Call


def call_of(request: Request, settings: HttpSettings, body_ms: float | None = None) -> Call:
    """The call, with the deadline that the body (`body_ms`), a header or the settings give. Raises InvalidRequest."""
    seconds = asking.deadline_s(
        body_ms,
        request.headers.get("x-weir-deadline-ms", ""),
        settings.default_deadline_s,
        settings.max_deadline_s,
    )
    peer = request.client.host if request.client else ""
    return Call(Deadline.after(seconds), request.headers.get("traceparent", ""), peer)


def headers_of(request: Request) -> Headers:
    """Raises InvalidRequest."""
    given = request.headers
    hops = asking.hops(given.get("x-weir-hops", ""))
    return Headers(given.get("x-weir-constraint", ""), given.get("idempotency-key", ""), hops)
