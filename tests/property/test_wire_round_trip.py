"""Law: what goes over the wire comes back as it was, and no bytes crash the reader."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from wire import convert, convert_answer, convert_describe, convert_engine, convert_tasks
from wire.classification import Classified, ClassifyRequest, LabelScore
from wire.description import Description, Limits, ModelInfo
from wire.engine import Activation, EngineStatus, RankStatus
from wire.errors import WeirError
from wire.messages import (
    Committed,
    Constraints,
    Context,
    Delta,
    Draft,
    Final,
    GenerateRequest,
    Message,
    Reason,
    ResponseFormat,
    Sampling,
    Signals,
    Tier,
    TierConstraint,
    TokenLogprob,
    Tool,
    ToolCall,
    Usage,
)
from wire.scoring import Scored, ScoredContinuation, ScoreRequest

text = st.text(max_size=40)
count = st.integers(0, 2**31 - 1)
# float32 fields travel as float32: only values it holds exactly come back as they were.
single = st.floats(width=32, allow_nan=False)
double = st.floats(allow_nan=False)
tokens = st.lists(count, max_size=8).map(tuple)
logprobs = st.lists(single, max_size=8).map(tuple)
maybe = st.none

texts = st.lists(text, max_size=3).map(tuple)
calls = st.lists(st.builds(ToolCall, text, text, text), max_size=2).map(tuple)
messages = st.lists(st.builds(Message, text, text, calls, text, text), max_size=4).map(tuple)
constraints = st.builds(Constraints, st.sampled_from(TierConstraint), maybe() | single, text)
contexts = st.builds(Context, text, text, text, text, maybe() | single, count, text)
signals = st.builds(Signals, count, double, double, double, double, double, double, double, double, count)
requests = st.builds(
    GenerateRequest,
    model=text,
    messages=messages,
    prompt=text,
    sampling=st.builds(
        Sampling,
        maybe() | st.integers(-(2**31), 2**31 - 1),
        maybe() | single,
        maybe() | single,
        maybe() | count,
        maybe() | st.integers(0, 2**64 - 1),
        maybe() | single,
        maybe() | single,
        maybe() | single,
        maybe() | single,
        st.dictionaries(count, single, max_size=3),
    ),
    stop=texts,
    response_format=maybe() | st.builds(ResponseFormat, text, text, texts, text, text, st.booleans()),
    constraints=constraints,
    context=contexts,
    draft=maybe() | st.builds(Draft, text, count, text, text, tokens, logprobs),
    idempotency_key=text,
    hops=count,
    return_logprobs=st.booleans(),
    return_signals=st.booleans(),
    request_id=text,
    top_logprobs=count,
    tools=st.lists(st.builds(Tool, text, text, text, st.booleans()), max_size=2).map(tuple),
    tool_choice=text,
)
finals = st.builds(
    Final,
    finish_reason=text,
    usage=st.builds(Usage, count, count, count),
    tier=st.sampled_from(Tier),
    release=text,
    weight_digest=text,
    precision=count,
    weight_format=text,
    confidence=maybe() | double,
    threshold=maybe() | double,
    reason=st.sampled_from(Reason),
    degraded=st.booleans(),
    wanted_reason=maybe() | st.sampled_from(Reason),
    audited=st.booleans(),
    timings_ms=st.dictionaries(text, double, max_size=4),
    draft_tokens_offered=count,
    draft_tokens_accepted=count,
    draft_status=text,
    hops=count,
    request_id=text,
    node=text,
    signals=maybe() | signals,
    tool_calls=calls,
    edge_tokens_spent=count,
)
top = st.lists(st.builds(TokenLogprob, count, single, st.binary(max_size=4)), max_size=2).map(tuple)
events = (
    st.builds(Committed, st.sampled_from(Tier), st.sampled_from(Reason), text)
    | st.builds(
        Delta,
        text,
        tokens,
        logprobs,
        maybe() | signals,
        st.lists(st.binary(max_size=4), max_size=3).map(tuple),
        st.lists(top, max_size=3).map(tuple),
    )
    | finals
)
labels = st.lists(text, max_size=3).map(tuple)
models = st.builds(
    ModelInfo,
    text,
    text,
    labels,
    labels,
    text,
    count,
    text,
    text,
    count,
    count,
    st.lists(count, max_size=2).map(tuple),
    text,
    texts,
    st.booleans(),
)
descriptions = st.builds(
    Description,
    text,
    st.sampled_from(Tier),
    text,
    st.lists(models, max_size=2).map(tuple),
    st.builds(Limits, count, count, count, count),
    st.dictionaries(text, text, max_size=2),
    st.booleans(),
    text,
    st.binary(max_size=20),
)
statuses = st.builds(
    EngineStatus,
    text,
    text,
    count,
    count,
    count,
    count,
    count,
    text,
    count,
    text,
    st.lists(st.builds(RankStatus, count, count, count, count), max_size=2).map(tuple),
    count,
    count,
    count,
    count,
    count,
)
classify_requests = st.builds(
    ClassifyRequest, text, text, text, constraints, contexts, count, text, text, count, st.booleans(), tokens, tokens
)
classified = st.builds(
    Classified,
    text,
    st.sampled_from(Tier),
    st.lists(st.builds(LabelScore, text, double), max_size=3).map(tuple),
    texts,
    st.booleans(),
    logprobs,
    maybe() | double,
    maybe() | double,
    st.sampled_from(Reason),
    st.booleans(),
    maybe() | st.sampled_from(Reason),
    text,
    text,
    count,
    text,
    count,
    st.dictionaries(text, double, max_size=2),
    count,
    text,
    text,
)
scored = st.builds(
    Scored, st.lists(st.builds(ScoredContinuation, tokens, logprobs), max_size=3).map(tuple), text, text, count, count
)


@given(requests)
def test_requests(request: GenerateRequest) -> None:
    assert convert.request_in(convert.request_out(request).SerializeToString()) == request


@given(events)
def test_events(event: Committed | Delta | Final) -> None:
    assert convert_answer.event_in(convert_answer.event_out(event)) == event


@given(descriptions)
def test_descriptions(description: Description) -> None:
    assert convert_describe.description_in(convert_describe.description_out(description)) == description


@given(statuses)
def test_statuses(status: EngineStatus) -> None:
    assert convert_engine.status_in(convert_engine.status_out(status)) == status


@given(st.builds(Activation, text, count, text, double, double, text))
def test_activations(activation: Activation) -> None:
    assert convert_engine.activation_in(convert_engine.activation_out(activation)) == activation


@given(classify_requests)
def test_classify_requests(request: ClassifyRequest) -> None:
    assert convert_tasks.classify_request_in(convert_tasks.classify_request_out(request)) == request


@given(classified)
def test_classified(answer: Classified) -> None:
    assert convert_tasks.classified_in(convert_tasks.classified_out(answer)) == answer


@given(st.builds(ScoreRequest, text, messages, text, texts, contexts, text, count))
def test_score_requests(request: ScoreRequest) -> None:
    assert convert_tasks.score_request_in(convert_tasks.score_request_out(request)) == request


@given(scored)
def test_scored(answer: Scored) -> None:
    assert convert_tasks.scored_in(convert_tasks.scored_out(answer)) == answer


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_reader(data: bytes) -> None:
    for read in (
        convert.request_in,
        convert_answer.event_in,
        convert_describe.description_in,
        convert_engine.status_in,
        convert_tasks.classify_request_in,
        convert_tasks.classified_in,
        convert_tasks.score_request_in,
        convert_tasks.scored_in,
    ):
        with contextlib.suppress(WeirError):
            read(data)
