"""Checks every request passes before it costs anything, at every tier alike.

Raises InvalidRequest (what can never succeed), TooLarge (over a size bound) or PreconditionFailed
(too many hops). Says which field, which value, and what is allowed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from wire.errors import InvalidRequest, PreconditionFailed, TooLarge
from wire.messages import Draft, GenerateRequest, Sampling

_MOST_SHOWN = 40
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Bounds on one request. Bytes are of UTF-8 text."""

    max_prompt_bytes: int = 1 << 20
    max_messages: int = 1024
    max_stop_sequences: int = 16
    max_stop_bytes: int = 1024
    max_label_bytes: int = 512
    max_hops: int = 4


def check_request(request: GenerateRequest, limits: RequestLimits) -> None:
    """Raises the first fault found."""
    _check_text(request, limits)
    _check_sampling(request.sampling)
    _check_stop(request.stop, limits)
    _check_constraints(request)
    _check_labels(request, limits)
    if request.draft is not None:
        _check_draft(request.draft, limits)
    if request.hops < 0:
        raise InvalidRequest(f"hops is {request.hops}; it starts at 0")
    if request.hops > limits.max_hops:
        raise PreconditionFailed(
            f"the request passed {request.hops} nodes, more than {limits.max_hops}; "
            "check that no node is its own upstream"
        )


def _check_text(request: GenerateRequest, limits: RequestLimits) -> None:
    if request.messages and request.prompt:
        raise InvalidRequest("give messages or prompt, not both")
    if not request.messages and not request.prompt:
        raise InvalidRequest("messages is empty and there is no prompt; give at least one message")
    if len(request.messages) > limits.max_messages:
        raise TooLarge(f"{len(request.messages)} messages; at most {limits.max_messages}")
    for index, message in enumerate(request.messages):
        if message.role not in ROLES:
            raise InvalidRequest(f"messages[{index}].role is {_shown(message.role)}; use one of {', '.join(ROLES)}")
    if request.messages and not any(message.content.strip() for message in request.messages):
        raise InvalidRequest("every message is empty; say something")
    size = sum(len(message.content.encode()) for message in request.messages) + len(request.prompt.encode())
    if size > limits.max_prompt_bytes:
        raise TooLarge(f"the prompt has {size} bytes; at most {limits.max_prompt_bytes}")


def _check_sampling(s: Sampling) -> None:
    if s.max_tokens is not None and s.max_tokens < 1:
        raise InvalidRequest(f"max_tokens is {s.max_tokens}; it must be at least 1")
    if s.temperature is not None and not 0 <= s.temperature <= 2:  # False for NaN as well
        raise InvalidRequest(f"temperature is {s.temperature}; it must lie between 0 and 2")
    if s.top_p is not None and not 0 < s.top_p <= 1:
        raise InvalidRequest(f"top_p is {s.top_p}; it must be above 0 and at most 1")
    if s.top_k is not None and s.top_k < 0:
        raise InvalidRequest(f"top_k is {s.top_k}; it must be 0 (off) or more")


def _check_stop(stop: tuple[str, ...], limits: RequestLimits) -> None:
    if len(stop) > limits.max_stop_sequences:
        raise InvalidRequest(f"{len(stop)} stop sequences; at most {limits.max_stop_sequences}")
    for text in stop:
        if not text:
            raise InvalidRequest("a stop sequence is empty; leave it out")
        if len(text.encode()) > limits.max_stop_bytes:
            raise InvalidRequest(f"a stop sequence is longer than {limits.max_stop_bytes} bytes")


def commit_prefix(rule: str) -> int | None:
    """The number of tokens of a "prefix:<tokens>" rule; None for "end". Raises InvalidRequest."""
    if rule == "end":
        return None
    head, _, tail = rule.partition(":")
    if head == "prefix" and tail.isdecimal() and len(tail) <= 4 and 1 <= int(tail) <= 4096:
        return int(tail)
    raise InvalidRequest(f"commit_rule is {_shown(rule)}; use 'end' or 'prefix:<tokens>'")


def _shown(text: str) -> str:
    """What a caller sent, for a message that must fit gRPC's trailing metadata."""
    return repr(text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…")


def _check_constraints(request: GenerateRequest) -> None:
    constraints, value = request.constraints, request.context.value
    if constraints.commit_rule:
        commit_prefix(constraints.commit_rule)
    if constraints.max_risk is not None and not 0 <= constraints.max_risk <= 1:
        raise InvalidRequest(f"max_risk is {constraints.max_risk}; it must lie between 0 and 1")
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise InvalidRequest(f"context.value is {value}; it must be a number from 0 up")


def _check_labels(request: GenerateRequest, limits: RequestLimits) -> None:
    c = request.context
    labels = {
        "model": request.model,
        "idempotency_key": request.idempotency_key,
        "request_id": request.request_id,
        "session_id": c.session_id,
        "tenant": c.tenant,
        "site": c.site,
        "request_class": c.request_class,
        "subject": c.subject,
    }
    for name, text in labels.items():
        if len(text.encode()) > limits.max_label_bytes:
            raise InvalidRequest(f"{name} is longer than {limits.max_label_bytes} bytes")


def _check_draft(draft: Draft, limits: RequestLimits) -> None:
    if len(draft.logprobs) not in (0, len(draft.token_ids)):
        raise InvalidRequest(
            f"the draft has {len(draft.token_ids)} tokens and {len(draft.logprobs)} log-probabilities; "
            "give one for each or none"
        )
    if any(token < 0 for token in draft.token_ids):
        raise InvalidRequest("the draft has a negative token id")
    if len(draft.token_ids) > limits.max_prompt_bytes:
        raise TooLarge(f"the draft has {len(draft.token_ids)} tokens; at most {limits.max_prompt_bytes}")
