"""Law: what goes over the wire comes back as it was, and no bytes crash the reader."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from wire import convert, convert_describe, convert_engine
from wire.errors import WeirError
from wire.messages import (
    Activation,
    Committed,
    Constraints,
    Context,
    Delta,
    Description,
    Draft,
    EngineStatus,
    Final,
    GenerateRequest,
    Limits,
    Message,
    ModelInfo,
    RankStatus,
    Reason,
    ResponseFormat,
    Sampling,
    Signals,
    Tier,
    TierConstraint,
    Usage,
)

text = st.text(max_size=40)
count = st.integers(0, 2**31 - 1)
# float32 fields travel as float32: only values it holds exactly come back as they were.
single = st.floats(width=32, allow_nan=False)
double = st.floats(allow_nan=False)
tokens = st.lists(count, max_size=8).map(tuple)
logprobs = st.lists(single, max_size=8).map(tuple)
maybe = st.none

signals = st.builds(Signals, count, double, double, double, double, double, double, double, double, count)
requests = st.builds(
    GenerateRequest,
    model=text,
    messages=st.lists(st.builds(Message, text, text), max_size=4).map(tuple),
    prompt=text,
    sampling=st.builds(
        Sampling,
        maybe() | st.integers(-(2**31), 2**31 - 1),
        maybe() | single,
        maybe() | single,
        maybe() | count,
        maybe() | st.integers(0, 2**64 - 1),
    ),
    stop=st.lists(text, max_size=3).map(tuple),
    response_format=maybe() | st.builds(ResponseFormat, text, text),
    constraints=st.builds(Constraints, st.sampled_from(TierConstraint), maybe() | single, text),
    context=st.builds(Context, text, text, text, text, maybe() | single, count, text),
    draft=maybe() | st.builds(Draft, text, count, text, text, tokens, logprobs),
    idempotency_key=text,
    hops=count,
    return_logprobs=st.booleans(),
    return_signals=st.booleans(),
    request_id=text,
)
finals = st.builds(
    Final,
    finish_reason=text,
    usage=st.builds(Usage, count, count),
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
)
events = (
    st.builds(Committed, st.sampled_from(Tier), st.sampled_from(Reason), text)
    | st.builds(Delta, text, tokens, logprobs, maybe() | signals)
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
)


@given(requests)
def test_requests(request: GenerateRequest) -> None:
    assert convert.request_in(convert.request_out(request).SerializeToString()) == request


@given(events)
def test_events(event: Committed | Delta | Final) -> None:
    assert convert.event_in(convert.event_out(event)) == event


@given(descriptions)
def test_descriptions(description: Description) -> None:
    assert convert_describe.description_in(convert_describe.description_out(description)) == description


@given(statuses)
def test_statuses(status: EngineStatus) -> None:
    assert convert_engine.status_in(convert_engine.status_out(status)) == status


@given(st.builds(Activation, text, count, text, double, double, text))
def test_activations(activation: Activation) -> None:
    assert convert_engine.activation_in(convert_engine.activation_out(activation)) == activation


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_reader(data: bytes) -> None:
    for read in (convert.request_in, convert.event_in, convert_describe.description_in, convert_engine.status_in):
        with contextlib.suppress(WeirError):
            read(data)
