"""protobuf ↔ dataclasses for the events of an answer."""

from __future__ import annotations

from operator import attrgetter

from protos.weir.v1 import inference_pb2 as pb
from wire import messages as m
from wire.convert import parse, reason_in, reason_out, tier_in, tier_out, tool_call_in, tool_call_out
from wire.errors import WeirError

_SIGNALS = tuple(m.Signals.__dataclass_fields__)
_signal_values = attrgetter(*_SIGNALS)  # all at once: there is one at every token


def _signals_out(s: m.Signals | None) -> pb.Signals | None:
    return None if s is None else _filled(pb.Signals(), s)


def _filled(out: pb.Signals, s: m.Signals) -> pb.Signals:
    """Field by field, which costs a third of what a constructor with ten names does."""
    out.SetInParent()
    out.tokens, out.prompt_tokens = s.tokens, s.prompt_tokens
    out.sum_logprob, out.first_logprob = s.sum_logprob, s.first_logprob
    out.min_logprob, out.second_min_logprob = s.min_logprob, s.second_min_logprob
    out.sum_entropy, out.max_entropy = s.sum_entropy, s.max_entropy
    out.min_margin, out.sum_margin = s.min_margin, s.sum_margin
    return out


def _signals_in(x: pb.Signals) -> m.Signals:
    return m.Signals(*_signal_values(x))


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
            out = pb.GenerateEvent()
            _delta_filled(out.delta, event)
        case m.Final():
            out = pb.GenerateEvent(final=_final_out(event))
    return out.SerializeToString()


def _delta_filled(out: pb.Delta, d: m.Delta) -> None:
    """In place, and only what is there: this is done for every token at every tier."""
    out.SetInParent()
    out.text = d.text
    if d.token_ids:
        out.token_ids.extend(d.token_ids)
    if d.logprobs:
        out.logprobs.extend(d.logprobs)
    if d.signals is not None:
        _filled(out.signals, d.signals)
    if d.token_bytes:
        out.token_bytes.extend(d.token_bytes)
    if d.top_logprobs:
        out.top_logprobs.extend(_top_out(x) for x in d.top_logprobs)


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
            ids, logprobs = tuple(d.token_ids), tuple(d.logprobs)
            if not (d.token_bytes or d.top_logprobs):
                return m.Delta(d.text, ids, logprobs, signals)
            top = tuple(_top_in(y) for y in d.top_logprobs)
            return m.Delta(d.text, ids, logprobs, signals, tuple(d.token_bytes), top)
        case "final":
            return _final_in(x.final)
    raise WeirError("the peer sent an event of an unknown kind; upgrade this side")


def _top_out(top: tuple[m.TokenLogprob, ...]) -> pb.TopLogprobs:
    return pb.TopLogprobs(top=[pb.TokenLogprob(token_id=x.token_id, logprob=x.logprob, text=x.text) for x in top])


def _top_in(x: pb.TopLogprobs) -> tuple[m.TokenLogprob, ...]:
    return tuple(m.TokenLogprob(y.token_id, y.logprob, y.text) for y in x.top)


def _final_out(f: m.Final) -> pb.Final:
    return pb.Final(
        finish_reason=f.finish_reason,
        usage=pb.Usage(
            prompt_tokens=f.usage.prompt_tokens,
            completion_tokens=f.usage.completion_tokens,
            cached_tokens=f.usage.cached_tokens,
        ),
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
        tool_calls=[tool_call_out(x) for x in f.tool_calls],
        edge_tokens_spent=f.edge_tokens_spent,
    )


def _final_in(x: pb.Final) -> m.Final:
    return m.Final(
        finish_reason=x.finish_reason,
        usage=m.Usage(x.usage.prompt_tokens, x.usage.completion_tokens, x.usage.cached_tokens),
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
        tool_calls=tuple(tool_call_in(y) for y in x.tool_calls),
        edge_tokens_spent=x.edge_tokens_spent,
    )
