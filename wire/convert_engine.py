"""protobuf ↔ dataclasses for the EngineControl service."""

from __future__ import annotations

from protos.weir.v1 import engine_pb2 as pb
from wire import engine as m
from wire.convert import parse

_STATUS = tuple(name for name in m.EngineStatus.__dataclass_fields__ if name != "ranks")
_RANK = tuple(m.RankStatus.__dataclass_fields__)
_ACTIVATION = tuple(m.Activation.__dataclass_fields__)


def activate_out(release_dir: str, precision: int) -> bytes:
    return pb.ActivateRequest(release_dir=release_dir, precision=precision).SerializeToString()


def activate_in(data: bytes) -> tuple[str, int]:
    """(release_dir, precision) asked for."""
    x = parse(pb.ActivateRequest, data)
    return x.release_dir, x.precision


def activation_out(a: m.Activation) -> bytes:
    return pb.ActivateResponse(**{name: getattr(a, name) for name in _ACTIVATION}).SerializeToString()


def activation_in(data: bytes) -> m.Activation:
    x = parse(pb.ActivateResponse, data)
    return m.Activation(**{name: getattr(x, name) for name in _ACTIVATION})


def status_out(s: m.EngineStatus) -> bytes:
    return pb.StatusResponse(
        **{name: getattr(s, name) for name in _STATUS},
        ranks=[pb.RankStatus(**{name: getattr(r, name) for name in _RANK}) for r in s.ranks],
    ).SerializeToString()


def status_in(data: bytes) -> m.EngineStatus:
    x = parse(pb.StatusResponse, data)
    ranks = tuple(m.RankStatus(**{name: getattr(r, name) for name in _RANK}) for r in x.ranks)
    return m.EngineStatus(**{name: getattr(x, name) for name in _STATUS}, ranks=ranks)


def status_request() -> bytes:
    return pb.StatusRequest().SerializeToString()


def drain_request() -> bytes:
    return pb.DrainRequest().SerializeToString()


def drained_out(active: int) -> bytes:
    return pb.DrainResponse(active=active).SerializeToString()


def drained_in(data: bytes) -> int:
    return parse(pb.DrainResponse, data).active
