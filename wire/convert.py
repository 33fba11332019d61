"""protobuf ↔ dataclasses for requests, and bytes at either end; answers are in wire.convert_answer.

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
from wire.errors import InvalidRequest, TooLarge

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
        messages=[message_out(x) for x in request.messages],
        prompt=request.prompt,
        sampling=_sampling_out(request.sampling),
        stop=request.stop,
        constraints=constraints_out(request.constraints),
        context=context_out(request.context),
        idempotency_key=request.idempotency_key,
        hops=request.hops,
        return_logprobs=request.return_logprobs,
        return_signals=request.return_signals,
        request_id=request.request_id,
        top_logprobs=request.top_logprobs,
        tools=[_tool_out(x) for x in request.tools],
        tool_choice=request.tool_choice,
    )
    if request.response_format is not None:
        out.response_format.CopyFrom(_format_out(request.response_format))
    if request.draft is not None:
        out.draft.CopyFrom(_draft_out(request.draft))
    return out


def request_in(data: bytes) -> m.GenerateRequest:
    """A GenerateRequest from the wire. Raises InvalidRequest."""
    x = parse(pb.GenerateRequest, data)
    _demand_few(x)
    return m.GenerateRequest(
        model=x.model,
        messages=tuple(message_in(y) for y in x.messages),
        prompt=x.prompt,
        sampling=_sampling_in(x.sampling),
        stop=tuple(x.stop),
        response_format=_format_in(x.response_format) if x.HasField("response_format") else None,
        constraints=constraints_in(x.constraints),
        context=context_in(x.context),
        draft=_draft_in(x.draft) if x.HasField("draft") else None,
        idempotency_key=x.idempotency_key,
        hops=x.hops,
        return_logprobs=x.return_logprobs,
        return_signals=x.return_signals,
        request_id=x.request_id,
        top_logprobs=x.top_logprobs,
        tools=tuple(_tool_in(y) for y in x.tools),
        tool_choice=x.tool_choice,
    )


def _demand_few(x: pb.GenerateRequest) -> None:
    """Before a dataclass is made of each: a few megabytes hold millions of empty ones. Raises TooLarge."""
    counts = {
        "messages": len(x.messages),
        "stop": len(x.stop),
        "tools": len(x.tools),
        "tool_calls": sum(len(y.tool_calls) for y in x.messages),
        "response_format.choices": len(x.response_format.choices),
        "sampling.logit_bias": len(x.sampling.logit_bias),
    }
    for field, count in counts.items():
        if count > MAX_REPEATED:
            raise TooLarge(f"{field} has {count} entries; at most {MAX_REPEATED}")


def message_out(x: m.Message) -> pb.Message:
    calls = [tool_call_out(y) for y in x.tool_calls]
    return pb.Message(role=x.role, content=x.content, tool_calls=calls, tool_call_id=x.tool_call_id, name=x.name)


def message_in(x: pb.Message) -> m.Message:
    return m.Message(x.role, x.content, tuple(tool_call_in(y) for y in x.tool_calls), x.tool_call_id, x.name)


def tool_call_out(x: m.ToolCall) -> pb.ToolCall:
    return pb.ToolCall(id=x.id, name=x.name, arguments=x.arguments)


def tool_call_in(x: pb.ToolCall) -> m.ToolCall:
    return m.ToolCall(x.id, x.name, x.arguments)


def _tool_out(x: m.Tool) -> pb.Tool:
    return pb.Tool(name=x.name, description=x.description, parameters=x.parameters, strict=x.strict)


def _tool_in(x: pb.Tool) -> m.Tool:
    return m.Tool(x.name, x.description, x.parameters, x.strict)


_SAMPLING = tuple(name for name in m.Sampling.__dataclass_fields__ if name != "logit_bias")


def _sampling_out(s: m.Sampling) -> pb.Sampling:
    return pb.Sampling(**{name: getattr(s, name) for name in _SAMPLING}, logit_bias=dict(s.logit_bias))


def _sampling_in(x: pb.Sampling) -> m.Sampling:
    set_here = {field.name for field, _ in x.ListFields()}
    given = {name: getattr(x, name) for name in _SAMPLING if name in set_here}
    return m.Sampling(**given, logit_bias=dict(x.logit_bias))


def _format_out(x: m.ResponseFormat) -> pb.ResponseFormat:
    return pb.ResponseFormat(
        type=x.type,
        json_schema=x.json_schema,
        choices=x.choices,
        name=x.name,
        description=x.description,
        strict=x.strict,
    )


def _format_in(x: pb.ResponseFormat) -> m.ResponseFormat:
    return m.ResponseFormat(x.type, x.json_schema, tuple(x.choices), x.name, x.description, x.strict)


def constraints_out(c: m.Constraints) -> pb.Constraints:
    return pb.Constraints(
        tier=pb.TierConstraint.Value(f"TIER_CONSTRAINT_{c.tier.name}"),
        max_risk=c.max_risk,
        commit_rule=c.commit_rule,
    )


def constraints_in(x: pb.Constraints) -> m.Constraints:
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


def context_out(c: m.Context) -> pb.Context:
    return pb.Context(
        session_id=c.session_id,
        tenant=c.tenant,
        site=c.site,
        request_class=c.request_class,
        value=c.value,
        priority=c.priority,
        subject=c.subject,
    )


def context_in(x: pb.Context) -> m.Context:
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
