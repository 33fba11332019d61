"""The tensors of a model that labels texts.

In: `text`, and `text_pair` where the model takes pairs, BYTES [n]; or the model's own `input_ids` and what goes with
them (edge.openinference.token_rows). Out, per element: `label`, `scores` over all
labels in the order of `classes`, `holds` (which labels hold: the one, or of a multi-label model any number),
and whence each came; `logits` for who asks for them by name, since not every tier tells them. Pure: no
sockets, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from edge.openinference import inputs, token_rows
from edge.openinference.parameters import Asked, classification
from wire.classification import Classified, ClassifyRequest
from wire.description import ModelInfo
from wire.errors import InvalidRequest, WeirError
from wire.openinference.messages import InferRequest, TensorMetadata
from wire.openinference.tensors import Element, Tensor

_TEXTS = (TensorMetadata("text", "BYTES", (-1,)), TensorMetadata("text_pair", "BYTES", (-1,)))
_PLAIN = {
    "label": "BYTES",
    "tier": "BYTES",
    "reason": "BYTES",
    "release": "BYTES",
    "degraded": "BOOL",
    "confidence": "FP32",
}
_PER_LABEL = {"scores": "FP32", "logits": "FP32", "holds": "BOOL"}


def takes(model: ModelInfo) -> tuple[TensorMetadata, ...]:
    """What may be sent: texts, or else raw tensors. The protocol has no words for that, so all are listed."""
    if token_rows.IDS not in model.capabilities:
        return _TEXTS
    return _TEXTS + token_rows.inputs(token_rows.TYPES in model.capabilities)


def outputs(model: ModelInfo) -> tuple[TensorMetadata, ...]:
    """What the model gives."""
    labels = len(model.labels)
    return (
        TensorMetadata("label", "BYTES", (-1,)),
        *(TensorMetadata(name, datatype, (-1, labels)) for name, datatype in _PER_LABEL.items()),
        *(TensorMetadata(name, datatype, (-1,)) for name, datatype in _PLAIN.items() if name != "label"),
        TensorMetadata("classes", "BYTES", (labels,)),
    )


def usual(model: ModelInfo) -> tuple[str, ...]:
    """The outputs of a request that names none."""
    return tuple(entry.name for entry in outputs(model) if entry.name != "logits")


def to_requests(
    request: InferRequest, model: ModelInfo, request_id: str, max_batch: int
) -> tuple[Asked, tuple[ClassifyRequest, ...]]:
    """One request for each element. Raises WeirError."""
    asked = classification(request.parameters)
    elements = _elements(inputs.named(request, [entry.name for entry in takes(model)]), max_batch)
    several = len(elements) > 1
    key = asked.idempotency_key
    logits = any(output.name == "logits" for output in request.outputs)
    return asked, tuple(
        replace(
            element,
            model=model.name,
            constraints=asked.constraints,
            context=asked.context,
            request_id=f"{request_id}/{index}" if several else request_id,
            idempotency_key=f"{key}/{index}" if key and several else key,
            return_logits=logits,
        )
        for index, element in enumerate(elements)
    )


def _elements(given: Mapping[str, Tensor], max_batch: int) -> tuple[ClassifyRequest, ...]:
    """What is to be labelled, and no more. Raises WeirError."""
    raw = [name for name in given if name in token_rows.NAMES]
    if raw and len(raw) < len(given):
        raise InvalidRequest(f"inputs {', '.join(given)}: give texts or {token_rows.IDS}, not both")
    if raw:
        rows = token_rows.rows(given, max_batch)
        return tuple(ClassifyRequest(input_ids=row.ids, token_type_ids=row.types) for row in rows)
    texts = inputs.texts(given, max_batch)
    if "text" not in texts:
        raise InvalidRequest("input text is missing")
    pairs = texts.get("text_pair", ("",) * len(texts["text"]))
    return tuple(ClassifyRequest(text=text, text_pair=pair) for text, pair in zip(texts["text"], pairs, strict=True))


def tensors(found: Sequence[Classified], model: ModelInfo, names: Sequence[str]) -> tuple[Tensor, ...]:
    """The outputs of these names. Raises WeirError where an answer is not over the model's labels."""
    return tuple(_tensor(name, found, model) for name in names)


def _tensor(name: str, found: Sequence[Classified], model: ModelInfo) -> Tensor:
    if name == "classes":
        return Tensor(name, "BYTES", (len(model.labels),), tuple(label.encode() for label in model.labels))
    if name in _PER_LABEL:
        rows = [_row(name, one, model) for one in found]
        return Tensor(name, _PER_LABEL[name], (len(found), len(model.labels)), tuple(v for row in rows for v in row))
    return Tensor(name, _PLAIN[name], (len(found),), tuple(_plain(name, one) for one in found))


def _plain(name: str, one: Classified) -> Element:
    match name:
        case "degraded":
            return one.degraded
        case "confidence":
            return math.nan if one.confidence is None else one.confidence
        case "tier" | "reason":
            return str(getattr(one, name).value).encode()
    return str(getattr(one, name)).encode()


def _row(name: str, one: Classified, model: ModelInfo) -> tuple[Element, ...]:
    """One element's figures in the order of the model's labels; not a number where an upstream told none."""
    if name == "holds":
        holding = set(one.labels) if one.multi_label else {one.label}
        return tuple(label in holding for label in model.labels)
    if name == "logits":
        if one.logits and len(one.logits) != len(model.labels):
            raise WeirError(f"an answer has {len(one.logits)} logits for {len(model.labels)} labels")
        return one.logits or (math.nan,) * len(model.labels)
    scores = {entry.label: entry.score for entry in one.scores}
    return tuple(scores.get(label, math.nan) for label in model.labels)
