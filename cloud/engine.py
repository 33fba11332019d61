"""What every cloud engine is: a Protocol, the capabilities it declares, and how it says it is well.

An engine turns one validated request into Delta events and one Final. Committing to a tier, admission
and routing are its caller's. A capability that is not declared is not offered: callers look here
before they ask, and `Describe` lists exactly these names.

Must not know: torch, sockets, processes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from cloud.config import WeightPrecision
from wire.deadline import Deadline
from wire.messages import Delta, Final, GenerateRequest

_BITS = {
    WeightPrecision.FLOAT32: 32,
    WeightPrecision.BFLOAT16: 16,
    WeightPrecision.INT8: 8,
    WeightPrecision.NF4: 4,
}
_FORMATS = {
    WeightPrecision.FLOAT32: "float32",
    WeightPrecision.BFLOAT16: "bfloat16",
    WeightPrecision.INT8: "bnb-int8",
    WeightPrecision.NF4: "bnb-nf4",
}


def weight_bits(precision: WeightPrecision) -> int:
    """Bits per weight, as Final.precision reports it."""
    return _BITS[precision]


def weight_format(precision: WeightPrecision) -> str:
    """The name Final.weight_format reports."""
    return _FORMATS[precision]


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """What an engine can do. `tensor_parallel_precisions` are the widths it can shard over ranks."""

    tasks: tuple[str, ...] = ("generate",)
    stream: bool = True
    sample: bool = True
    logprobs: bool = True
    signals: bool = False
    draft_verify: bool = False
    json_schema: bool = False
    precisions: tuple[WeightPrecision, ...] = tuple(WeightPrecision)
    tensor_parallel_precisions: tuple[WeightPrecision, ...] = (WeightPrecision.FLOAT32, WeightPrecision.BFLOAT16)

    def names(self) -> tuple[str, ...]:
        """As ModelInfo.capabilities lists them."""
        flags = ("stream", "sample", "logprobs", "signals", "draft_verify", "json_schema")
        return tuple(name for name in flags if getattr(self, name))


TRANSFORMERS = EngineCapabilities()


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """How an engine is: `active` requests hold a place in the batch, `queued` wait for one."""

    ok: bool
    detail: str = ""
    active: int = 0
    queued: int = 0
    slots: int = 0
    decode_steps: int = 0


class Engine(Protocol):
    """Answers requests for one model."""

    @property
    def capabilities(self) -> EngineCapabilities: ...

    def generate(self, request: GenerateRequest, deadline: Deadline) -> AsyncIterator[Delta | Final]:
        """Delta events as tokens are decoded, then one Final. Closing the iterator frees the slot.

        Raises WeirError: ContextTooLong, NotSupported, DeadlineExceeded, Unavailable.
        """
        ...

    def health(self) -> EngineHealth:
        """Now, without waiting for anything."""
        ...

    async def drain(self) -> int:
        """Takes no new requests; returns how many still run."""
        ...
