"""What the node tells beside the router's own events, and the sink that writes both as JSON lines.

No event holds a prompt's or an answer's text. A sink neither blocks nor raises.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from edge.updater.events import UpdaterEvent
from router.events import RouterEvent
from router.precision import PrecisionPlan


@dataclass(frozen=True, slots=True)
class EscalationFailed:
    """The upstream failed a request; `error` is the kind of fault, `message` what it said."""

    at: float
    request_id: str
    error: str
    message: str


@dataclass(frozen=True, slots=True)
class EdgeFailed:
    """The engine failed a request."""

    at: float
    request_id: str
    error: str
    message: str


@dataclass(frozen=True, slots=True)
class EngineChanged:
    """The engine came (`release` and `precision` say with what) or went."""

    at: float
    available: bool
    release: str = ""
    precision: int = 0
    weight_digest: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Activated:
    """Another release or precision is in force; `why` says what asked for it.

    `pause_ms` is how long new requests waited meanwhile; `note` says why they had to.
    """

    at: float
    release: str
    precision: int
    weight_digest: str
    load_ms: float
    why: str
    pause_ms: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class ActivationFailed:
    """A release or precision could not be put in force; what was, stays."""

    at: float
    release: str
    precision: int
    why: str
    message: str


@dataclass(frozen=True, slots=True)
class PrecisionWeighed:
    """The plan for the precision has another reason or other costs, whether or not it changed the bits."""

    at: float
    plan: PrecisionPlan


NodeEvent = EscalationFailed | EdgeFailed | EngineChanged | Activated | ActivationFailed | PrecisionWeighed
Event = RouterEvent | NodeEvent | UpdaterEvent


class Sink(Protocol):
    """Told of every event of the node and of its router."""

    def emit(self, event: Event) -> None: ...


class LogSink:
    """Writes each event as one line of JSON to a logger: decisions at debug, the rest at info."""

    def __init__(self, node: str, logger: logging.Logger | None = None) -> None:
        self._node = node
        self._logger = logger or logging.getLogger("weir.edge.events")

    def emit(self, event: Event) -> None:
        name = type(event).__name__
        level = logging.DEBUG if name == "Decided" else logging.INFO
        if self._logger.isEnabledFor(level):
            content = {"event": name, "node": self._node, **_plain(event)}
            self._logger.log(level, json.dumps(content, separators=(",", ":")))


def _plain(event: Event) -> dict[str, object]:
    return {field.name: _value(getattr(event, field.name)) for field in dataclasses.fields(event)}


def _value(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _value(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _value(entry) for key, entry in value.items()}
    if isinstance(value, float):
        return round(value, 6)
    return value if isinstance(value, str | int | bool) or value is None else str(value)
