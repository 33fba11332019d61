"""From the fields that both kinds of OpenAI request have to Weir's messages. Pure: no sockets, no clock."""

from __future__ import annotations

from dataclasses import dataclass

from edge.http.fields import Common, FieldRefused, WeirOptions
from wire.errors import InvalidRequest
from wire.messages import Constraints, Context, Sampling, TierConstraint


@dataclass(frozen=True, slots=True)
class Headers:
    """What request headers add; a body field of the same meaning wins."""

    constraint: str = ""
    idempotency_key: str = ""
    hops: int = 0


def sampling(body: Common, max_tokens: int | None) -> Sampling:
    return Sampling(
        max_tokens,
        body.temperature,
        body.top_p,
        body.top_k,
        body.seed,
        body.min_p,
        body.presence_penalty,
        body.frequency_penalty,
        body.repetition_penalty,
        _bias(body.logit_bias),
    )


def stops(body: Common) -> tuple[str, ...]:
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)


def constraints(options: WeirOptions, headers: Headers, rule: str = "") -> Constraints:
    """`rule` is the commit rule of a client that names none."""
    return Constraints(_tier(options.constraint or headers.constraint), options.max_risk, options.commit_rule or rule)


def rule_of(body: Common, streaming_rule: str) -> str:
    """`streaming_rule` is the commit rule of clients that stream."""
    return streaming_rule if body.stream else ""


def context(options: WeirOptions) -> Context:
    return Context(
        options.session_id,
        options.tenant,
        options.site,
        options.request_class,
        options.value,
        options.priority,
        options.subject,
    )


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


def hops(header: str) -> int:
    """How many nodes passed a request on, as a node that has this one as its upstream tells. Raises InvalidRequest."""
    if not header:
        return 0
    if not (header.isascii() and header.isdecimal() and len(header) <= 4):
        raise InvalidRequest(f"x-weir-hops is {header[:40]!r}; it is set by nodes, to a number from 0")
    return int(header)


def _bias(given: dict[str, float]) -> dict[int, float]:
    """OpenAI writes token ids as JSON keys."""
    bias = {}
    for token, value in given.items():
        if not (token.isascii() and token.isdecimal() and len(token) <= 9):
            raise FieldRefused(f"logit_bias names {token[:40]!r}; name token ids", "logit_bias")
        bias[int(token)] = value
    return bias


def _tier(name: str) -> TierConstraint:
    try:
        return TierConstraint(name or "auto")
    except ValueError:
        raise InvalidRequest(f"x-weir-constraint is {name!r}; use auto, edge_only or cloud_only") from None
