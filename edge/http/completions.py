"""Between OpenAI's completions and Weir's messages. Pure: no sockets, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from edge.http import asking
from edge.http.asking import Headers
from edge.http.choices import Answer, copies
from edge.http.completion_schema import CompletionRequest
from edge.http.logprobs import Entries, Offsets, completion_shape, whole_completion_shape
from edge.http.provenance import all_provenance, usage
from wire.messages import Delta, Final, GenerateRequest, Usage

Json = dict[str, Any]


def to_requests(
    body: CompletionRequest, headers: Headers, request_id: str, streaming_rule: str
) -> list[GenerateRequest]:
    """The requests behind a body: `n` for each prompt in turn."""
    key = body.weir.idempotency_key or headers.idempotency_key
    requests: list[GenerateRequest] = []
    for index, prompt in enumerate(body.prompts):
        suffix = f"-p{index}" if index else ""
        asked = GenerateRequest(
            model=body.model,
            prompt=prompt,
            sampling=asking.sampling(body, body.max_tokens),
            stop=asking.stops(body),
            constraints=asking.constraints(body.weir, headers, asking.rule_of(body, streaming_rule)),
            context=asking.context(body.weir),
            idempotency_key=f"{key}{suffix}" if key else "",
            request_id=f"{request_id}{suffix}",
            hops=headers.hops,
            return_logprobs=body.logprobs is not None,
            top_logprobs=body.logprobs or 0,
        )
        requests.extend(copies(asked, body.n))
    return requests


@dataclass(frozen=True, slots=True)
class Shape:
    """What every piece of one body repeats. `echoes` is what each answer begins with."""

    id: str
    created: int
    model: str
    echoes: tuple[str, ...]
    logprobs: int | None = None

    def completion(self, answers: Sequence[Answer], tokens: Usage) -> Json:
        """A whole body, for edge.http.gradual."""
        return {
            **self.head(),
            "choices": [self._choice(index, answer) for index, answer in enumerate(answers)],
            "usage": usage(tokens),
            "weir": all_provenance([answer.end for answer in answers]),
        }

    def _choice(self, index: int, answer: Answer) -> Json:
        logprobs = None
        if self.logprobs is not None:
            logprobs = whole_completion_shape(answer.deltas, self.logprobs)
        text = self.echoes[index] + answer.text
        return {"index": index, "text": text, "finish_reason": answer.end.finish_reason, "logprobs": logprobs}

    def head(self) -> Json:
        return {"id": f"cmpl-{self.id}", "object": "text_completion", "created": self.created, "model": self.model}


@dataclass(slots=True)
class Stream:
    """The chunks of one stream of answers."""

    shape: Shape
    n: int
    entries: list[Entries] = field(init=False)
    offsets: list[Offsets] = field(init=False)

    def __post_init__(self) -> None:
        self.entries = [Entries(self.shape.logprobs or 0) for _ in range(self.n)]
        self.offsets = [Offsets() for _ in range(self.n)]

    def begin(self) -> list[Json]:
        return [self._chunk(index, echo) for index, echo in enumerate(self.shape.echoes) if echo]

    def piece(self, index: int, delta: Delta) -> list[Json]:
        if self.shape.logprobs is None:
            return [self._chunk(index, delta.text)] if delta.text else []
        told = self.entries[index].take(delta)
        if not delta.text:
            return []
        offsets = self.offsets[index].take(told, delta.text)
        return [self._chunk(index, delta.text, completion_shape(told, offsets))]

    def end(self, index: int, final: Final) -> list[Json]:
        return [self._chunk(index, "", finish=final.finish_reason)]

    def usage(self, tokens: Usage) -> Json:
        return {**self.shape.head(), "choices": [], "usage": usage(tokens)}

    def _chunk(self, index: int, text: str, logprobs: Json | None = None, finish: str | None = None) -> Json:
        choice = {"index": index, "text": text, "finish_reason": finish, "logprobs": logprobs}
        return {**self.shape.head(), "choices": [choice]}
