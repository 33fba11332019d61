"""protobuf ↔ dataclasses for what a server says of itself: models, limits, active releases."""

from __future__ import annotations

from typing import Any

from protos.weir.v1 import inference_pb2 as pb
from wire import description as m
from wire.convert import parse, tier_in, tier_out

_MODEL_SCALARS = (
    "name",
    "release",
    "tokenizer_digest",
    "precision",
    "weight_format",
    "weight_digest",
    "context_length",
    "max_output_tokens",
    "calibration_id",
    "multi_label",
)
_MODEL_LISTS = ("tasks", "capabilities", "precisions_available", "labels")


def _model_in(x: pb.ModelInfo) -> m.ModelInfo:
    fields: dict[str, Any] = {name: getattr(x, name) for name in _MODEL_SCALARS}
    fields |= {name: tuple(getattr(x, name)) for name in _MODEL_LISTS}
    return m.ModelInfo(**fields)


_LIMITS = tuple(m.Limits.__dataclass_fields__)


def description_out(d: m.Description) -> bytes:
    """A Description as bytes for the wire."""
    return pb.DescribeResponse(
        node=d.node,
        tier=tier_out(d.tier),
        version=d.version,
        models=[
            pb.ModelInfo(**{name: getattr(x, name) for name in (*_MODEL_SCALARS, *_MODEL_LISTS)}) for x in d.models
        ],
        limits=pb.Limits(**{name: getattr(d.limits, name) for name in _LIMITS}),
        active_releases=dict(d.active_releases),
        ready=d.ready,
        not_ready_reason=d.not_ready_reason,
        padding=d.padding,
    ).SerializeToString()


def description_in(data: bytes) -> m.Description:
    """A Description from the wire."""
    x = parse(pb.DescribeResponse, data)
    return m.Description(
        node=x.node,
        tier=tier_in(x.tier),
        version=x.version,
        models=tuple(_model_in(y) for y in x.models),
        limits=m.Limits(**{name: getattr(x.limits, name) for name in _LIMITS}),
        active_releases=dict(x.active_releases),
        ready=x.ready,
        not_ready_reason=x.not_ready_reason,
        padding=x.padding,
    )
