"""What every request passes before the API sees it: the token, and a bound on its body.

An ASGI layer of its own, so that nothing of an unauthorized request is parsed. The token is compared in
constant time. Only liveness and the API's description are open: neither says anything about releases.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cloud.admin.faults import body as fault_body
from wire.errors import InvalidRequest, TooLarge, Unauthenticated, WeirError, http_status

OPEN_PATHS = frozenset({"/healthz", "/openapi.json"})
MAX_BODY_BYTES = 64 << 10
BODY_TIMEOUT_S = 10.0


class Guard:
    """Lets a request through to `app` with its whole body, or answers it."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._digest = app, _digest(token.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            if scope["path"] not in OPEN_PATHS:
                self._authorize(scope)
            content = await _read_body(receive)
        except WeirError as error:
            headers = {"www-authenticate": "Bearer"} if isinstance(error, Unauthenticated) else None
            await JSONResponse(fault_body(error), http_status(error), headers)(scope, receive, send)
            return
        if content is not None:
            await self._app(scope, _replay(content, receive), send)

    def _authorize(self, scope: Scope) -> None:
        given = dict(scope["headers"]).get(b"authorization", b"")
        kind, _, token = given.partition(b" ")
        # Digests have one length, so the comparison tells nothing about the token's either.
        if not hmac.compare_digest(_digest(token.strip()), self._digest) or kind.lower() != b"bearer":
            raise Unauthenticated("the admin token is missing or wrong: send 'Authorization: Bearer TOKEN'")


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


async def _read_body(receive: Receive) -> bytes | None:
    """The whole body; None when the client left."""
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                content += message.get("body", b"")
                if len(content) > MAX_BODY_BYTES:
                    raise TooLarge(f"the body is larger than {MAX_BODY_BYTES} bytes; nothing here needs so much")
                if not message.get("more_body", False):
                    return bytes(content)
    except TimeoutError as error:
        raise InvalidRequest(f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s") from error


def _replay(content: bytes, receive: Receive) -> Receive:
    waiting = [content]

    async def replay() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return replay
