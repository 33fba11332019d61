"""The tensors of a model that writes text.

In: `text` (each element the user's turn of a conversation of its own) or `prompt` (each element a raw
prompt), BYTES [n]. Out: one element for each, see OUTPUTS. Pure: no sockets, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge.openinference import inputs
from edge.openinference.parameters import Asked, generation
from wire.errors import InvalidRequest
from wire.messages import Final, GenerateRequest, Message
from wire.openinference.messages import InferRequest, TensorMetadata
from wire.openinference.tensors import Element, Tensor

INPUTS = (TensorMetadata("text", "BYTES", (-1,)), TensorMetadata("prompt", "BYTES", (-1,)))


@dataclass(frozen=True, slots=True)
class Answer:
    """One element's answer."""

    text: str
    final: Final


_OUTPUTS: dict[str, tuple[str, Callable[[Answer], Element]]] = {
    "text": ("BYTES", lambda answer: answer.text.encode()),
    "finish_reason": ("BYTES", lambda answer: answer.final.finish_reason.encode()),
    "tier": ("BYTES", lambda answer: answer.final.tier.value.encode()),
    "reason": ("BYTES", lambda answer: answer.final.reason.value.encode()),
    "release": ("BYTES", lambda answer: answer.final.release.encode()),
    "degraded": ("BOOL", lambda answer: answer.final.degraded),
    "confidence": ("FP32", lambda answer: math.nan if answer.final.confidence is None else answer.final.confidence),
    "prompt_tokens": ("INT64", lambda answer: answer.final.usage.prompt_tokens),
    "completion_tokens": ("INT64", lambda answer: answer.final.usage.completion_tokens),
}
OUTPUTS = tuple(TensorMetadata(name, datatype, (-1,)) for name, (datatype, _) in _OUTPUTS.items())


def to_requests(
    request: InferRequest, model: str, request_id: str, max_batch: int
) -> tuple[Asked, tuple[GenerateRequest, ...]]:
    """One request for each element. Raises WeirError."""
    asked = generation(request.parameters)
    given = inputs.texts(inputs.named(request, [entry.name for entry in INPUTS]), max_batch)
    if len(given) != 1:
        raise InvalidRequest("give one input: text (a user's turn) or prompt (a raw prompt)")
    [(name, texts)] = given.items()
    if name == "prompt" and asked.system:
        raise InvalidRequest("parameter system goes with text; a raw prompt has no turns")
    before = (Message("system", asked.system),) if asked.system else ()
    several = len(texts) > 1
    return asked, tuple(
        GenerateRequest(
            model=model,
            messages=(*before, Message("user", text)) if name == "text" else (),
            prompt=text if name == "prompt" else "",
            sampling=asked.sampling,
            stop=asked.stop,
            response_format=asked.response_format,
            constraints=asked.constraints,
            context=asked.context,
            # Elements differ, so one key for all of them would name different requests.
            idempotency_key=f"{asked.idempotency_key}/{index}"
            if asked.idempotency_key and several
            else asked.idempotency_key,
            request_id=f"{request_id}/{index}" if several else request_id,
        )
        for index, text in enumerate(texts)
    )


def tensors(answers: Sequence[Answer], names: Sequence[str]) -> tuple[Tensor, ...]:
    """The outputs of these names."""
    shape = (len(answers),)
    return tuple(
        Tensor(name, datatype, shape, tuple(of(answer) for answer in answers))
        for name, (datatype, of) in ((name, _OUTPUTS[name]) for name in names)
    )
