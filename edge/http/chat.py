"""Between OpenAI's chat completions and Weir's messages. Pure: no sockets, no clock."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edge.http.schema import ChatMessage, ChatRequest, Format
from wire.errors import InvalidRequest
from wire.messages import (
    Committed,
    Constraints,
    Context,
    Final,
    GenerateRequest,
    Message,
    ResponseFormat,
    Sampling,
    TierConstraint,
)

Json = dict[str, Any]

# OpenAI renamed the system role; both mean the same to a chat template.
_ROLES = {"developer": "system"}


@dataclass(frozen=True, slots=True)
class Headers:
    """What request headers add; a body field of the same meaning wins."""

    constraint: str = ""
    idempotency_key: str = ""


def to_request(body: ChatRequest, headers: Headers, request_id: str, streaming_rule: str) -> GenerateRequest:
    """The request behind a body. `streaming_rule` is the commit rule of clients that stream."""
    _refuse_broken_text(body)
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise InvalidRequest("max_tokens and max_completion_tokens differ; give one")
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    options = body.weir
    return GenerateRequest(
        model=body.model,
        messages=tuple(Message(_ROLES.get(m.role, m.role), _text(m)) for m in body.messages),
        sampling=Sampling(limit, body.temperature, body.top_p, body.top_k, body.seed),
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop),
        response_format=_format(body.response_format),
        constraints=Constraints(
            _tier(options.constraint or headers.constraint),
            options.max_risk,
            options.commit_rule or (streaming_rule if body.stream else ""),
        ),
        context=Context(
            options.session_id,
            options.tenant,
            options.site,
            options.request_class,
            options.value,
            options.priority,
            options.subject,
        ),
        idempotency_key=options.idempotency_key or headers.idempotency_key,
        request_id=request_id,
    )


def _text(message: ChatMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    return "".join(part.text for part in message.content)


def _refuse_broken_text(body: ChatRequest) -> None:
    """JSON can spell half a surrogate pair, which is no text and has no UTF-8."""
    try:
        body.model_dump_json().encode()
    except (UnicodeEncodeError, ValueError) as error:
        raise InvalidRequest("the body holds half a surrogate pair (\\ud800 to \\udfff), which is not text") from error


def _tier(name: str) -> TierConstraint:
    try:
        return TierConstraint(name or "auto")
    except ValueError:
        raise InvalidRequest(f"x-weir-constraint is {name!r}; use auto, edge_only or cloud_only") from None


def _format(given: Format | None) -> ResponseFormat | None:
    if given is None or given.type == "text":
        return None
    if given.type == "json_schema":
        if given.json_schema is None:
            raise InvalidRequest("response_format.json_schema is missing")
        return ResponseFormat("json_schema", json.dumps(given.json_schema.schema_))
    return ResponseFormat(given.type)


def deadline_s(body_ms: float | None, header: str, default_s: float, most_s: float) -> float:
    """Seconds this request may take. Raises InvalidRequest."""
    if body_ms is None and not header:
        return default_s
    try:
        given_ms = float(header) if body_ms is None else body_ms
    except ValueError:
        given_ms = float("nan")
    if not 0 < given_ms <= most_s * 1e3:  # False for NaN as well
        shown = header if body_ms is None else body_ms
        raise InvalidRequest(f"the deadline is {shown!s:.40} ms; give a number above 0 and at most {most_s * 1e3:.0f}")
    return given_ms / 1e3


def provenance(final: Final) -> Json:
    """The `weir` object: where the answer came from and why. Absent figures are null."""
    return {
        "tier": final.tier.value,
        "reason": final.reason.value,
        "degraded": final.degraded,
        "wanted_reason": final.wanted_reason.value if final.wanted_reason else None,
        "release": final.release,
        "weight_digest": final.weight_digest,
        "precision": final.precision,
        "weight_format": final.weight_format,
        "confidence": final.confidence,
        "threshold": final.threshold,
        "audited": final.audited,
        "draft": {
            "offered": final.draft_tokens_offered,
            "accepted": final.draft_tokens_accepted,
            "status": final.draft_status,
        },
        "hops": final.hops,
        "node": final.node,
        "request_id": final.request_id,
        "timings_ms": {name: round(ms, 3) for name, ms in final.timings_ms.items()},
    }


def usage(final: Final) -> Json:
    prompt, completion = final.usage.prompt_tokens, final.usage.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


@dataclass(frozen=True, slots=True)
class Shape:
    """What every piece of one answer repeats."""

    id: str
    created: int
    model: str

    def completion(self, text: str, final: Final) -> Json:
        """A whole answer."""
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": final.finish_reason, "logprobs": None}
        return {
            **self._head("chat.completion"),
            "choices": [choice],
            "usage": usage(final),
            "weir": provenance(final),
        }

    def first(self) -> Json:
        return self._chunk({"role": "assistant", "content": ""})

    def piece(self, text: str) -> Json:
        return self._chunk({"content": text})

    def last(self, final: Final, include_usage: bool) -> list[Json]:
        """The closing chunks; the very last one carries `weir`."""
        end = self._chunk({}, final.finish_reason)
        if not include_usage:
            return [{**end, "weir": provenance(final)}]
        closing = {**self._head("chat.completion.chunk"), "choices": [], "usage": usage(final)}
        return [end, {**closing, "weir": provenance(final)}]

    def _chunk(self, delta: Json, finish: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def _head(self, kind: str) -> Json:
        return {"id": f"chatcmpl-{self.id}", "object": kind, "created": self.created, "model": self.model}


def headers(settled: Committed | Final) -> Mapping[str, str]:
    """Provenance as response headers. The release is left out where nobody said it yet."""
    known = {"x-weir-tier": settled.tier.value, "x-weir-reason": settled.reason.value}
    return known | ({"x-weir-release": settled.release} if settled.release else {})
