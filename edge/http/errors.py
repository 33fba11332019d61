"""Faults in OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

from typing import Any

from edge.http.fields import FieldRefused
from wire.errors import (
    ContextTooLong,
    DeadlineExceeded,
    NotFound,
    NotSupported,
    Overloaded,
    TooLarge,
    TooManyHops,
    Unavailable,
    WeirError,
    http_status,
)

_TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error"}
_CODES: tuple[tuple[type[WeirError], str], ...] = (
    (ContextTooLong, "context_length_exceeded"),
    (NotFound, "model_not_found"),
    (TooLarge, "request_too_large"),
    (Overloaded, "overloaded"),
    (NotSupported, "not_supported"),
    (TooManyHops, "hop_limit"),
)
# Faults that other tiers find begin with the name of the field they found them in.
_FIELDS = frozenset(
    (
        "messages", "prompt", "max_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty",
        "frequency_penalty", "repetition_penalty", "logit_bias", "top_logprobs", "response_format", "tools",
        "tool_choice", "stop",
    )
)  # fmt: skip


def status(error: WeirError) -> int:
    """The HTTP status. What is not served is the request's fault here: OpenAI's clients try a 501 again."""
    return 400 if isinstance(error, NotSupported) else http_status(error)


def headers(error: WeirError) -> dict[str, str]:
    """What a client may want to know beside the document: when to come back, or that there is no point.

    A request that had no answer in its time would take another engine's for as long again.
    """
    if isinstance(error, Overloaded | Unavailable):
        return {"retry-after": "1"}
    return {"x-should-retry": "false"} if isinstance(error, NotSupported | DeadlineExceeded) else {}


def body(error: WeirError) -> dict[str, Any]:
    """The JSON document of an error."""
    told = status(error)
    kind = _TYPES.get(told, "server_error" if told >= 500 else "invalid_request_error")
    if isinstance(error, Overloaded):
        kind = "rate_limit_error"
    if isinstance(error, FieldRefused):
        param, code = error.param, error.code
    else:
        param = _param(error.message) if told < 500 else None
        code = next((code for known, code in _CODES if isinstance(error, known)), None)
    return {"error": {"message": error.message, "type": kind, "param": param, "code": code}}


def _param(message: str) -> str | None:
    first = message.split(" ", 1)[0].rstrip(":")
    return first if first.partition("[")[0] in _FIELDS else None
