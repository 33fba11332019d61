"""The contracts between tiers, as Protocols.

`InferenceService` is what an edge node, a gateway, an engine host, an engine process, a gRPC client
and a test double all are. `generate` is an async generator: closing it cancels the work at every
tier below. A service yields Committed at most once and before the first Delta that it will not take
back; it yields exactly one Final, last, or raises a WeirError. A Delta that holds nothing (BEAT) is a sign of life.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from wire.deadline import Deadline
from wire.description import Description
from wire.engine import Activation, EngineStatus
from wire.messages import GenerateEvent, GenerateRequest

# In a Final's timings, beside the stages: ms the request waited while the engine's weights were changed.
CHANGING = "changing"


@dataclass(frozen=True, slots=True)
class Call:
    """What belongs to one call rather than to one request.

    `first_word` is when the caller gives up one that has said nothing; None: at the deadline. It does not travel.
    """

    deadline: Deadline
    traceparent: str = ""
    peer: str = ""
    first_word: Deadline | None = None


class InferenceService(Protocol):
    """Answers requests."""

    def generate(self, request: GenerateRequest, call: Call) -> AsyncGenerator[GenerateEvent, None]:
        """The answer as events. Raises WeirError; cancelled by closing the iterator."""
        ...

    async def describe(self, call: Call, probe_bytes: int = 0) -> Description:
        """What is served here. `probe_bytes` asks for that much padding, to measure a link."""
        ...


class EngineControl(Protocol):
    """Controls the process, or group of processes, that holds a model's weights."""

    async def activate(self, release_dir: str, precision: int, call: Call) -> Activation:
        """Puts a release and precision in force for new requests; running ones finish first.

        New requests are answered meanwhile, or wait where memory does not hold old and new; none fails of it.
        """
        ...

    async def status(self, call: Call) -> EngineStatus:
        """What is running now."""
        ...

    async def drain(self, call: Call) -> int:
        """Takes no new requests; returns how many still run."""
        ...


@dataclass(frozen=True, slots=True)
class Exchange:
    """One finished call as the network saw it: message bytes, not counting framing."""

    method: str
    bytes_sent: int
    bytes_received: int
    first_response_ms: float | None
    total_ms: float
    code: str  # OK or a gRPC status name


class ExchangeObserver(Protocol):
    """Told of every finished call of a client."""

    def on_exchange(self, exchange: Exchange) -> None: ...
