"""protobuf ↔ dataclasses for requests and the events of an answer, and bytes at either end.

Decoding raises InvalidRequest for bytes that are no message (truncated, invalid UTF-8), so that bad
input is the caller's error, not an internal one. An enum value from a newer peer decodes as the
field's default, since readers must tolerate what they do not know yet; but a constraint nobody knows
is refused.
"""

from __future__ import annotations

import enum
from typing import TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Protobuf

from protos.weir.v1 import inference_pb2 as pb
from wire import messages as m
from wire.errors import InvalidRequest, TooLarge, WeirError

MAX_REPEATED = 4096

_P = TypeVar("_P", bound=Protobuf)
_E = TypeVar("_E", bound=enum.StrEnum)


def parse(kind: type[_P], data: bytes) -> _P:
    """Bytes → protobuf. Raises InvalidRequest for what is no such message."""
    message = kind()
    try:
        message.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"not a valid {kind.DESCRIPTOR.full_name}: {error}; text must be UTF-8") from error
    return message


def _enum_in(kind: type[_E], names: dict[int, str], number: int, default: _E) -> _E:
    return kind.__members__.get(names.get(number, ""), default)


def _names(wrapper: object, prefix: str) -> dict[int, str]:
    items: list[tuple[str, int]] = wrapper.items()  # type: ignore[attr-defined]
    return {number: name.removeprefix(prefix) for name, number in items}


_TIERS = _names(pb.Tier, "TIER_")
_REASONS = _names(pb.Reason, "REASON_")
_CONSTRAINTS = _names(pb.TierConstraint, "TIER_CONSTRAINT_")


def tier_out(tier: m.Tier) -> pb.Tier.ValueType:
    return pb.Tier.Value(f"TIER_{tier.name}")


def tier_in(number: int) -> m.Tier:
    return _enum_in(m.Tier, _TIERS, number, m.Tier.EDGE)


def reason_out(reason: m.Reason) -> pb.Reason.ValueType:
    return pb.Reason.Value(f"REASON_{reason.name}")


def reason_in(number: int) -> m.Reason:
    return _enum_in(m.Reason, _REASONS, number, m.Reason.CONFIDENT)


def request_out(request: m.GenerateRequest) -> pb.GenerateRequest:
    """A GenerateRequest for the wire."""
    out = pb.GenerateRequest(
        model=request.model,
        messages=[pb.Message(role=x.role, content=x.content) for x in request.messages],
        prompt=request.prompt,
        sampling=_sampling_out(request.sampling),
        stop=request.stop,
        constraints=_constraints_out(request.constraints),
        context=_context_out(request.context),
        idempotency_key=request.idempotency_key,
        hops=request.hops,
        return_logprobs=request.return_logprobs,
        return_signals=request.return_signals,
        request_id=request.request_id,
    )
    if request.response_format is not None:
        out.response_format.type = request.response_format.type
        out.response_format.json_schema = request.response_format.json_schema
    if request.draft is not None:
        out.draft.CopyFrom(_draft_out(request.draft))
    return out


def request_in(data: bytes) -> m.GenerateRequest:
    """A GenerateRequest from the wire. Raises InvalidRequest."""
    x = parse(pb.GenerateRequest, data)
    for field, count in (("messages", len(x.messages)), ("stop", len(x.stop))):
        # Before a dataclass is made of each: a few megabytes hold millions of empty ones.
        if count > MAX_REPEATED:
            raise TooLarge(f"{field} has {count} entries; at most {MAX_REPEATED}")
    return m.GenerateRequest(
        model=x.model,
        messages=tuple(m.Message(y.role, y.content) for y in x.messages),
        prompt=x.prompt,
        sampling=_sampling_in(x.sampling),
        stop=tuple(x.stop),
        response_format=_format_in(x.response_format) if x.HasField("response_format") else None,
        constraints=_constraints_in(x.constraints),
        context=_context_in(x.context),
        draft=_draft_in(x.draft) if x.HasField("draft") else None,
        idempotency_key=x.idempotency_key,
        hops=x.hops,
        return_logprobs=x.return_logprobs,
        return_signals=x.return_signals,
        request_id=x.request_id,
    )


def _sampling_out(s: m.Sampling) -> pb.Sampling:
    return pb.Sampling(max_tokens=s.max_tokens, temperature=s.temperature, top_p=s.top_p, top_k=s.top_k, seed=s.seed)


def _sampling_in(x: pb.Sampling) -> m.Sampling:
    return m.Sampling(
        max_tokens=x.max_tokens if x.HasField("max_tokens") else None,
        temperature=x.temperature if x.HasField("temperature") else None,
        top_p=x.top_p if x.HasField("top_p") else None,
        top_k=x.top_k if x.HasField("top_k") else None,
        seed=x.seed if x.HasField("seed") else None,
    )


def _format_in(x: pb.ResponseFormat) -> m.ResponseFormat:
    return m.ResponseFormat(x.type, x.json_schema)


def _constraints_out(c: m.Constraints) -> pb.Constraints:
    return pb.Constraints(
        tier=pb.TierConstraint.Value(f"TIER_CONSTRAINT_{c.tier.name}"),
        max_risk=c.max_risk,
        commit_rule=c.commit_rule,
    )


def _constraints_in(x: pb.Constraints) -> m.Constraints:
    if x.tier not in _CONSTRAINTS:
        # Not read as a default: it may be a promise, such as never to leave the node.
        raise InvalidRequest(
            f"constraints.tier {x.tier} is not known to this version; use AUTO, EDGE_ONLY or CLOUD_ONLY"
        )
    return m.Constraints(
        tier=_enum_in(m.TierConstraint, _CONSTRAINTS, x.tier, m.TierConstraint.AUTO),
        max_risk=x.max_risk if x.HasField("max_risk") else None,
        commit_rule=x.commit_rule,
    )


def _context_out(c: m.Context) -> pb.Context:
    return pb.Context(
        session_id=c.session_id,
        tenant=c.tenant,
        site=c.site,
        request_class=c.request_class,
        value=c.value,
        priority=c.priority,
        subject=c.subject,
    )


def _context_in(x: pb.Context) -> m.Context:
    return m.Context(
        session_id=x.session_id,
        tenant=x.tenant,
        site=x.site,
        request_class=x.request_class,
        value=x.value if x.HasField("value") else None,
        priority=x.priority,
        subject=x.subject,
    )


def _draft_out(d: m.Draft) -> pb.Draft:
    return pb.Draft(
        release=d.release,
        precision=d.precision,
        tokenizer_digest=d.tokenizer_digest,
        calibration_id=d.calibration_id,
        token_ids=d.token_ids,
        logprobs=d.logprobs,
    )


def _draft_in(x: pb.Draft) -> m.Draft:
    return m.Draft(x.release, x.precision, x.tokenizer_digest, x.calibration_id, tuple(x.token_ids), tuple(x.logprobs))


_SIGNALS = tuple(m.Signals.__dataclass_fields__)


def _signals_out(s: m.Signals | None) -> pb.Signals | None:
    return None if s is None else pb.Signals(**{name: getattr(s, name) for name in _SIGNALS})


def _signals_in(x: pb.Signals) -> m.Signals:
    return m.Signals(**{name: getattr(x, name) for name in _SIGNALS})


def event_out(event: m.GenerateEvent) -> bytes:
    """A GenerateEvent as bytes for the wire."""
    match event:
        case m.Committed():
            out = pb.GenerateEvent(
                committed=pb.Committed(
                    tier=tier_out(event.tier),
                    reason=reason_out(event.reason),
                    request_id=event.request_id,
                    release=event.release,
                )
            )
        case m.Delta():
            out = pb.GenerateEvent(
                delta=pb.Delta(
                    text=event.text,
                    token_ids=event.token_ids,
                    logprobs=event.logprobs,
                    signals=_signals_out(event.signals),
                )
            )
        case m.Final():
            out = pb.GenerateEvent(final=_final_out(event))
    return out.SerializeToString()


def event_in(data: bytes) -> m.GenerateEvent:
    """A GenerateEvent from the wire. Raises WeirError for an event this version does not know."""
    x = parse(pb.GenerateEvent, data)
    match x.WhichOneof("event"):
        case "committed":
            c = x.committed
            return m.Committed(tier_in(c.tier), reason_in(c.reason), c.request_id, c.release)
        case "delta":
            d = x.delta
            signals = _signals_in(d.signals) if d.HasField("signals") else None
            return m.Delta(d.text, tuple(d.token_ids), tuple(d.logprobs), signals)
        case "final":
            return _final_in(x.final)
    raise WeirError("the peer sent an event of an unknown kind; upgrade this side")


def _final_out(f: m.Final) -> pb.Final:
    return pb.Final(
        finish_reason=f.finish_reason,
        usage=pb.Usage(prompt_tokens=f.usage.prompt_tokens, completion_tokens=f.usage.completion_tokens),
        tier=tier_out(f.tier),
        release=f.release,
        weight_digest=f.weight_digest,
        precision=f.precision,
        weight_format=f.weight_format,
        confidence=f.confidence,
        threshold=f.threshold,
        reason=reason_out(f.reason),
        degraded=f.degraded,
        wanted_reason=pb.REASON_UNSPECIFIED if f.wanted_reason is None else reason_out(f.wanted_reason),
        audited=f.audited,
        timings_ms=dict(f.timings_ms),
        draft_tokens_offered=f.draft_tokens_offered,
        draft_tokens_accepted=f.draft_tokens_accepted,
        draft_status=f.draft_status,
        hops=f.hops,
        request_id=f.request_id,
        node=f.node,
        signals=_signals_out(f.signals),
    )


def _final_in(x: pb.Final) -> m.Final:
    return m.Final(
        finish_reason=x.finish_reason,
        usage=m.Usage(x.usage.prompt_tokens, x.usage.completion_tokens),
        tier=tier_in(x.tier),
        release=x.release,
        weight_digest=x.weight_digest,
        precision=x.precision,
        weight_format=x.weight_format,
        confidence=x.confidence if x.HasField("confidence") else None,
        threshold=x.threshold if x.HasField("threshold") else None,
        reason=reason_in(x.reason),
        degraded=x.degraded,
        wanted_reason=None if x.wanted_reason == pb.REASON_UNSPECIFIED else reason_in(x.wanted_reason),
        audited=x.audited,
        timings_ms=dict(x.timings_ms),
        draft_tokens_offered=x.draft_tokens_offered,
        draft_tokens_accepted=x.draft_tokens_accepted,
        draft_status=x.draft_status,
        hops=x.hops,
        request_id=x.request_id,
        node=x.node,
        signals=_signals_in(x.signals) if x.HasField("signals") else None,
    )
