"""protobuf ↔ dataclasses for Classify and Score."""

from __future__ import annotations

from protos.weir.v1 import inference_pb2 as pb
from wire import convert
from wire.classification import MOST_IDS, Classified, ClassifyRequest, LabelScore
from wire.errors import TooLarge
from wire.scoring import Scored, ScoredContinuation, ScoreRequest


def classify_request_out(request: ClassifyRequest) -> bytes:
    return pb.ClassifyRequest(
        model=request.model,
        text=request.text,
        text_pair=request.text_pair,
        constraints=convert.constraints_out(request.constraints),
        context=convert.context_out(request.context),
        hops=request.hops,
        request_id=request.request_id,
        idempotency_key=request.idempotency_key,
        top_labels=request.top_labels,
        return_logits=request.return_logits,
        input_ids=request.input_ids,
        token_type_ids=request.token_type_ids,
    ).SerializeToString()


def classify_request_in(data: bytes) -> ClassifyRequest:
    """Raises InvalidRequest, TooLarge."""
    x = convert.parse(pb.ClassifyRequest, data)
    _demand_few("input_ids", len(x.input_ids), MOST_IDS)
    _demand_few("token_type_ids", len(x.token_type_ids), MOST_IDS)
    return ClassifyRequest(
        model=x.model,
        text=x.text,
        text_pair=x.text_pair,
        constraints=convert.constraints_in(x.constraints),
        context=convert.context_in(x.context),
        hops=x.hops,
        request_id=x.request_id,
        idempotency_key=x.idempotency_key,
        top_labels=x.top_labels,
        return_logits=x.return_logits,
        input_ids=tuple(x.input_ids),
        token_type_ids=tuple(x.token_type_ids),
    )


def classified_out(c: Classified) -> bytes:
    return pb.ClassifyResponse(
        label=c.label,
        confidence=c.confidence,
        tier=convert.tier_out(c.tier),
        reason=convert.reason_out(c.reason),
        degraded=c.degraded,
        scores=[pb.LabelScore(label=x.label, score=x.score) for x in c.scores],
        labels=c.labels,
        multi_label=c.multi_label,
        logits=c.logits,
        wanted_reason=pb.REASON_UNSPECIFIED if c.wanted_reason is None else convert.reason_out(c.wanted_reason),
        release=c.release,
        weight_digest=c.weight_digest,
        precision=c.precision,
        weight_format=c.weight_format,
        threshold=c.threshold,
        tokens=c.tokens,
        timings_ms=dict(c.timings_ms),
        hops=c.hops,
        request_id=c.request_id,
        node=c.node,
    ).SerializeToString()


def classified_in(data: bytes) -> Classified:
    x = convert.parse(pb.ClassifyResponse, data)
    return Classified(
        label=x.label,
        tier=convert.tier_in(x.tier),
        scores=tuple(LabelScore(y.label, y.score) for y in x.scores),
        labels=tuple(x.labels),
        multi_label=x.multi_label,
        logits=tuple(x.logits),
        confidence=x.confidence if x.HasField("confidence") else None,
        threshold=x.threshold if x.HasField("threshold") else None,
        reason=convert.reason_in(x.reason),
        degraded=x.degraded,
        wanted_reason=None if x.wanted_reason == pb.REASON_UNSPECIFIED else convert.reason_in(x.wanted_reason),
        release=x.release,
        weight_digest=x.weight_digest,
        precision=x.precision,
        weight_format=x.weight_format,
        tokens=x.tokens,
        timings_ms=dict(x.timings_ms),
        hops=x.hops,
        request_id=x.request_id,
        node=x.node,
    )


def score_request_out(request: ScoreRequest) -> bytes:
    return pb.ScoreRequest(
        model=request.model,
        messages=[convert.message_out(x) for x in request.messages],
        prompt=request.prompt,
        context=convert.context_out(request.context),
        continuations=request.continuations,
        request_id=request.request_id,
        hops=request.hops,
    ).SerializeToString()


def score_request_in(data: bytes) -> ScoreRequest:
    """The one continuation of older peers comes first. Raises InvalidRequest, TooLarge."""
    x = convert.parse(pb.ScoreRequest, data)
    for field, count in (("messages", len(x.messages)), ("continuations", len(x.continuations))):
        _demand_few(field, count, convert.MAX_REPEATED)
    return ScoreRequest(
        model=x.model,
        messages=tuple(convert.message_in(y) for y in x.messages),
        prompt=x.prompt,
        continuations=((x.continuation,) if x.continuation else ()) + tuple(x.continuations),
        context=convert.context_in(x.context),
        request_id=x.request_id,
        hops=x.hops,
    )


def scored_out(s: Scored) -> bytes:
    first = s.scored[0] if s.scored else ScoredContinuation((), ())
    return pb.ScoreResponse(
        token_ids=first.token_ids,
        logprobs=first.logprobs,
        release=s.release,
        scored=[pb.ScoredContinuation(token_ids=x.token_ids, logprobs=x.logprobs) for x in s.scored],
        weight_digest=s.weight_digest,
        precision=s.precision,
        prompt_tokens=s.prompt_tokens,
    ).SerializeToString()


def scored_in(data: bytes) -> Scored:
    x = convert.parse(pb.ScoreResponse, data)
    return Scored(
        tuple(ScoredContinuation(tuple(y.token_ids), tuple(y.logprobs)) for y in x.scored),
        x.release,
        x.weight_digest,
        x.precision,
        x.prompt_tokens,
    )


def _demand_few(field: str, count: int, most: int) -> None:
    if count > most:
        raise TooLarge(f"{field} has {count} entries; at most {most}")
