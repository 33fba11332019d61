"""Who is in one model's part of a node, of at most so many; and the names a request goes by from there on.

Must not know: what is asked for, or who answers it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from wire.classification import ClassifyRequest
from wire.errors import Overloaded
from wire.messages import GenerateRequest

_Request = TypeVar("_Request", GenerateRequest, ClassifyRequest)


class WayIn:
    """At most `most` at once. `what` comes in, in the plural: requests, texts."""

    def __init__(self, most: int, what: str) -> None:
        self._most, self._what = most, what
        self._inside = 0

    @property
    def inside(self) -> int:
        return self._inside

    def demand_room(self) -> None:
        """Raises Overloaded."""
        if self._inside >= self._most:
            raise Overloaded(f"{self._inside} {self._what} are in this node, which is the most; try again later")

    @contextmanager
    def counted(self) -> Iterator[None]:
        """In the node from here to the end of the block."""
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1


def named(request: _Request, model: str) -> _Request:
    """With whatever its caller left out: the `model`, a request id, a key that makes it idempotent."""
    return replace(
        request,
        model=request.model or model,
        request_id=request.request_id or uuid.uuid4().hex,
        idempotency_key=request.idempotency_key or uuid.uuid4().hex,
    )
