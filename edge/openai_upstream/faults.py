"""An endpoint's errors as the wire's.

    400, 405, 415, 422     InvalidRequest, ContextTooLong by its code     the caller's, or not served there
    401, 403               Unauthenticated, PermissionDenied              this node's key: nothing gets through
    404                    NotFound                                       the model, or the path
    412                    PreconditionFailed, TooManyHops by its code    a Weir node's
    413                    TooLarge
    429                    Overloaded
    3xx, 5xx, the rest     Unavailable

What an endpoint says is shown, shortened and without the key, which some of them repeat.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from edge.openai_upstream.words import words
from runtime import foreign_json
from wire.errors import (
    ContextTooLong,
    InvalidRequest,
    NotFound,
    NotSupported,
    Overloaded,
    PermissionDenied,
    PreconditionFailed,
    TooLarge,
    TooManyHops,
    Unauthenticated,
    Unavailable,
    WeirError,
)

HOP_LIMIT = "hop_limit"
_MOST_SHOWN = 200
_BY_STATUS: dict[int, type[WeirError]] = {
    400: InvalidRequest,
    401: Unauthenticated,
    403: PermissionDenied,
    404: NotFound,
    405: InvalidRequest,
    412: PreconditionFailed,
    413: TooLarge,
    415: InvalidRequest,
    422: InvalidRequest,
    429: Overloaded,
    501: NotSupported,
}
_BY_CODE: dict[str, type[WeirError]] = {
    "context_length_exceeded": ContextTooLong,
    HOP_LIMIT: TooManyHops,
    "invalid_api_key": Unauthenticated,
    "model_not_found": NotFound,
    "rate_limit_exceeded": Overloaded,
    "insufficient_quota": Overloaded,
}
_BY_TYPE: dict[str, type[WeirError]] = {
    "invalid_request_error": InvalidRequest,
    "authentication_error": Unauthenticated,
    "permission_error": PermissionDenied,
    "rate_limit_error": Overloaded,
}


class Refused(Exception):
    """An answer with a status that is no success: what the endpoint said, before it is judged."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(status)
        self.status, self.headers, self.document = status, headers, _document(body)

    def parameter(self, mentions: Collection[str] = ()) -> str:
        """The field that the endpoint names as the one at fault, if only by mentioning one of `mentions`."""
        fault = _fault(self.document)
        place = _first(fault).get("loc")
        named = fault.get("param") or (place[-1] if isinstance(place, list) and place else "")
        if isinstance(named, str) and named:
            return named
        said = _said(fault, "")
        return next((name for name in mentions if name in said), "")

    def retry_after_s(self) -> float | None:
        """When the endpoint asks to come back; None where it does not say, or not in seconds."""
        value = self.headers.get("retry-after", "")
        return float(value) if value.isascii() and value.isdecimal() and len(value) <= 6 else None


def _document(body: bytes) -> Any:
    try:
        return foreign_json.read_with_infinities(body)
    except foreign_json.NotJson:
        return None


def _fault(document: Any) -> Mapping[str, Any]:
    """OpenAI nests the fault under `error`; others put it at the top, or leave a mere text."""
    inner = document.get("error", document) if isinstance(document, dict) else document
    return inner if isinstance(inner, dict) else {"message": inner}


def _first(fault: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first of a list of faults in `detail`, as servers made with FastAPI tell them."""
    told = fault.get("detail")
    first = told[0] if isinstance(told, list) and told else None
    return first if isinstance(first, dict) else {}


def of_status(refused: Refused, secret: str) -> WeirError:
    """The error behind a status."""
    fault, status = _fault(refused.document), refused.status
    kind = _by_code(fault) or _BY_STATUS.get(status, Unavailable)
    said = _said(fault, secret)
    if kind is TooManyHops and said:  # which every node on the way back would tell once more
        return TooManyHops(said)
    if kind in (Unauthenticated, PermissionDenied):
        said = f"{said}; check upstream_api_key" if said else "check upstream_api_key"
    if 300 <= status < 400:
        said = "it leads elsewhere, where the key must not go; set upstream to where it leads"
    return kind(f"the upstream answered {status}" + (f": {said}" if said else ""))


def of_document(document: Mapping[str, Any], secret: str) -> WeirError | None:
    """The error that a document of a stream is, if it is one: some endpoints send them with status 200."""
    if not document.get("error"):
        return None
    fault = _fault(document)
    code = fault.get("code")
    by_status = _BY_STATUS.get(code) if isinstance(code, int) else None
    kind = _by_code(fault) or by_status or _BY_TYPE.get(str(fault.get("type")), Unavailable)
    return kind(f"the upstream said: {_said(fault, secret) or 'an error without words'}")


def broken(what: str) -> WeirError:
    """The error of an answer that has another shape than it should."""
    return Unavailable(f"the upstream's answer is broken: {what}")


def _by_code(fault: Mapping[str, Any]) -> type[WeirError] | None:
    return _BY_CODE.get(str(fault.get("code")))


def _said(fault: Mapping[str, Any], secret: str) -> str:
    message = fault.get("message") or _first(fault).get("msg") or fault.get("detail")
    said = " ".join(message.split()) if isinstance(message, str) else ""
    # Before it is shortened: half a key is still a key's half.
    hidden = said.replace(secret, "(key)") if secret else said
    return words(hidden, _MOST_SHOWN)
