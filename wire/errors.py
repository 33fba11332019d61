"""Everything that can go wrong, as one tree and one table.

    WeirError                      INTERNAL             500
    ├── InvalidRequest             INVALID_ARGUMENT     400   the caller must change the request
    │   ├── ContextTooLong         INVALID_ARGUMENT     400   prompt and answer exceed the model's context
    │   └── CannotConstrain        INVALID_ARGUMENT     400   this tier cannot hold an answer to the form asked for
    ├── Unauthenticated            UNAUTHENTICATED      401
    ├── PermissionDenied           PERMISSION_DENIED    403
    ├── NotFound                   NOT_FOUND            404   unknown model or release
    ├── Conflict                   ABORTED              409   somebody else changed it first
    ├── PreconditionFailed         FAILED_PRECONDITION  412   not while things stand as they do
    │   └── TooManyHops            FAILED_PRECONDITION  412   the request went round, or through too long a chain
    ├── TooLarge                   RESOURCE_EXHAUSTED   413   the request exceeds a size limit
    ├── Overloaded                 RESOURCE_EXHAUSTED   429   a queue is full: try again later
    ├── Cancelled                  CANCELLED            499
    ├── NotSupported               UNIMPLEMENTED        501   named in the contract, not served here
    ├── Unavailable                UNAVAILABLE          503   the tier is there but cannot answer now
    └── DeadlineExceeded           DEADLINE_EXCEEDED    504

A message says what is wrong and what to do. The class name travels in the trailing metadata under
`weir-error`, so that a client raises what the server raised.
"""

from __future__ import annotations

import grpc

ERROR_METADATA_KEY = "weir-error"
# A gRPC status with 8 KiB of details or more is lost on its way; a character can take 12 bytes there.
MAX_MESSAGE_CHARACTERS = 600


class WeirError(Exception):
    """Root of the tree; by itself an internal fault."""

    @property
    def message(self) -> str:
        whole = str(self.args[0]) if self.args else type(self).__name__
        return whole if len(whole) <= MAX_MESSAGE_CHARACTERS else whole[: MAX_MESSAGE_CHARACTERS - 1] + "…"


class InvalidRequest(WeirError):
    """The request can never succeed as it is."""


class ContextTooLong(InvalidRequest):
    """Prompt and answer do not fit the model's context."""


class CannotConstrain(InvalidRequest):
    """The answer cannot be held to the schema or tools asked for, by this tier; another may know how."""


class Unauthenticated(WeirError):
    """Credentials are missing or wrong."""


class PermissionDenied(WeirError):
    """The caller is known and may not do this."""


class NotFound(WeirError):
    """No such model, release or key."""


class Conflict(WeirError):
    """Somebody else changed it first; read again and retry."""


class PreconditionFailed(WeirError):
    """Not while things stand as they do."""


class TooManyHops(PreconditionFailed):
    """The request passed as many nodes as it may. Trying again takes the same way."""


class TooLarge(WeirError):
    """The request exceeds a size limit."""


class Overloaded(WeirError):
    """A bounded queue is full; try again later."""


class Cancelled(WeirError):
    """The caller left."""


class NotSupported(WeirError):
    """Named in the contract, not served here."""


class Unavailable(WeirError):
    """The tier is known but cannot answer now."""


class DeadlineExceeded(WeirError):
    """The request's time ran out."""


def internal_fault() -> WeirError:
    """What a caller is told of a fault that nobody foresaw: its words stay in the log."""
    return WeirError("an internal fault was logged on the server; the request was not answered")


_TABLE: tuple[tuple[type[WeirError], grpc.StatusCode, int], ...] = (
    (ContextTooLong, grpc.StatusCode.INVALID_ARGUMENT, 400),
    (CannotConstrain, grpc.StatusCode.INVALID_ARGUMENT, 400),
    (InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT, 400),
    (Unauthenticated, grpc.StatusCode.UNAUTHENTICATED, 401),
    (PermissionDenied, grpc.StatusCode.PERMISSION_DENIED, 403),
    (NotFound, grpc.StatusCode.NOT_FOUND, 404),
    (Conflict, grpc.StatusCode.ABORTED, 409),
    (TooManyHops, grpc.StatusCode.FAILED_PRECONDITION, 412),
    (PreconditionFailed, grpc.StatusCode.FAILED_PRECONDITION, 412),
    (TooLarge, grpc.StatusCode.RESOURCE_EXHAUSTED, 413),
    (Overloaded, grpc.StatusCode.RESOURCE_EXHAUSTED, 429),
    (Cancelled, grpc.StatusCode.CANCELLED, 499),
    (NotSupported, grpc.StatusCode.UNIMPLEMENTED, 501),
    (Unavailable, grpc.StatusCode.UNAVAILABLE, 503),
    (DeadlineExceeded, grpc.StatusCode.DEADLINE_EXCEEDED, 504),
    (WeirError, grpc.StatusCode.INTERNAL, 500),
)

_BY_NAME = {kind.__name__: kind for kind, _, _ in _TABLE}


def grpc_code(error: WeirError) -> grpc.StatusCode:
    """The gRPC status an error answers with."""
    return next(code for kind, code, _ in _TABLE if isinstance(error, kind))


def http_status(error: WeirError) -> int:
    """The HTTP status an error answers with."""
    return next(status for kind, _, status in _TABLE if isinstance(error, kind))


def named(name: str, message: str) -> WeirError:
    """The error of that class name; a plain WeirError for a name this version does not know."""
    return _BY_NAME.get(name, WeirError)(message)


def from_grpc(code: grpc.StatusCode, details: str, name: str | None = None) -> WeirError:
    """The error behind a gRPC status; `name` is the class name from the trailing metadata."""
    if name in _BY_NAME:
        return _BY_NAME[name](details)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        # grpc itself answers this for a message over the size limit.
        kind: type[WeirError] = TooLarge if "larger than max" in details else Overloaded
        return kind(details)
    for kind, known, _ in reversed(_TABLE):
        if known is code:
            return kind(details)
    return WeirError(f"{code.name}: {details}")
