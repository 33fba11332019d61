"""What an engine says of itself to whoever controls it.

The fields are those of protos/weir/v1/engine.proto; `wire.convert_engine` maps one to the other.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Activation:
    """The session now in force in an engine.

    `pause_ms` is how long new requests waited for it, 0 where the old session served meanwhile; `note` says why.
    """

    release: str
    precision: int
    weight_digest: str
    load_ms: float
    pause_ms: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class RankStatus:
    """One rank of a tensor-parallel group and how much of the model it holds."""

    rank: int
    pid: int
    parameter_bytes: int
    parameter_bytes_total: int


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What an engine is doing; `state` is starting, ready, draining or down."""

    state: str
    detail: str = ""
    active: int = 0
    queued: int = 0
    slots: int = 0
    decode_steps: int = 0
    restarts: int = 0
    release: str = ""
    precision: int = 0
    weight_digest: str = ""
    ranks: tuple[RankStatus, ...] = ()
    pid: int = 0
    kv_tokens: int = 0
    kv_tokens_used: int = 0
    prefix_tokens: int = 0
    prefix_hit_tokens: int = 0
