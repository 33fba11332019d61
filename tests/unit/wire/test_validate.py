"""Every fault in a request is named with its value and what is allowed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from wire.capabilities import demand_capable, needs
from wire.classification import MOST_IDS, ClassifyRequest
from wire.convert_tasks import classify_request_in, classify_request_out
from wire.errors import InvalidRequest, NotSupported, PreconditionFailed, TooLarge, WeirError
from wire.messages import (
    Constraints,
    Context,
    Draft,
    GenerateRequest,
    Message,
    ResponseFormat,
    Sampling,
    TierConstraint,
    Tool,
    ToolCall,
)
from wire.scoring import ScoreRequest
from wire.validate import RequestLimits, check_classify, check_request, check_score, commit_prefix

HELLO = (Message("user", "hello"),)
SCHEMA = ResponseFormat("json_schema", "{}")
LIMITS = RequestLimits(max_prompt_bytes=1000)
CLOUD_ONLY = Constraints(TierConstraint.CLOUD_ONLY)


def test_a_plain_request_passes() -> None:
    check_request(GenerateRequest(messages=HELLO), LIMITS)
    check_request(GenerateRequest(prompt="hello", sampling=Sampling(16, 0.7, 0.9, 40, 1), stop=("\n",)), LIMITS)


@pytest.mark.parametrize(
    ("request_", "kind", "word"),
    [
        (GenerateRequest(), InvalidRequest, "messages"),
        (GenerateRequest(messages=HELLO, prompt="x"), InvalidRequest, "not both"),
        (GenerateRequest(messages=(Message("user", "  "),)), InvalidRequest, "empty"),
        (GenerateRequest(messages=(Message("robot", "x"),)), InvalidRequest, "robot"),
        (GenerateRequest(prompt="é" * 501), TooLarge, "1002"),
        (GenerateRequest(messages=HELLO * 1025), TooLarge, "1025"),
        (GenerateRequest(messages=HELLO, sampling=Sampling(max_tokens=-1)), InvalidRequest, "max_tokens is -1"),
        (GenerateRequest(messages=HELLO, sampling=Sampling(max_tokens=0)), InvalidRequest, "max_tokens is 0"),
        (GenerateRequest(messages=HELLO, sampling=Sampling(temperature=math.nan)), InvalidRequest, "temperature"),
        (GenerateRequest(messages=HELLO, sampling=Sampling(temperature=2.5)), InvalidRequest, "2.5"),
        (GenerateRequest(messages=HELLO, sampling=Sampling(top_p=0.0)), InvalidRequest, "top_p"),
        (GenerateRequest(messages=HELLO, sampling=Sampling(top_p=math.nan)), InvalidRequest, "top_p"),
        (GenerateRequest(messages=HELLO, sampling=Sampling(top_k=-3)), InvalidRequest, "top_k"),
        (GenerateRequest(messages=HELLO, stop=("",)), InvalidRequest, "stop"),
        (GenerateRequest(messages=HELLO, stop=("x",) * 17), InvalidRequest, "17"),
        (GenerateRequest(messages=HELLO, stop=("x" * 2000,)), InvalidRequest, "stop"),
        (GenerateRequest(messages=HELLO, constraints=Constraints(max_risk=1.5)), InvalidRequest, "max_risk"),
        (GenerateRequest(messages=HELLO, constraints=Constraints(commit_rule="soon")), InvalidRequest, "soon"),
        (GenerateRequest(messages=HELLO, context=Context(value=-1.0)), InvalidRequest, "value"),
        (GenerateRequest(messages=HELLO, context=Context(value=math.inf)), InvalidRequest, "value"),
        (GenerateRequest(messages=HELLO, context=Context(tenant="t" * 600)), InvalidRequest, "tenant"),
        (GenerateRequest(messages=HELLO, hops=-1), InvalidRequest, "hops"),
        (GenerateRequest(messages=HELLO, hops=5), PreconditionFailed, "own upstream"),
        (GenerateRequest(messages=HELLO, draft=Draft("r", 4, "t", "c", (1, 2), (-0.1,))), InvalidRequest, "draft"),
        (GenerateRequest(messages=HELLO, draft=Draft("r", 4, "t", "c", (-1,), ())), InvalidRequest, "negative"),
        (GenerateRequest(messages=HELLO, sampling=Sampling(min_p=1.5)), InvalidRequest, "min_p is 1.5"),
        (GenerateRequest(messages=HELLO, sampling=Sampling(presence_penalty=3)), InvalidRequest, "presence_penalty"),
        (GenerateRequest(messages=HELLO, sampling=Sampling(frequency_penalty=math.nan)), InvalidRequest, "frequency"),
        (GenerateRequest(messages=HELLO, sampling=Sampling(repetition_penalty=0)), InvalidRequest, "repetition"),
        (GenerateRequest(messages=HELLO, sampling=Sampling(logit_bias={-1: 1})), InvalidRequest, "token -1"),
        (GenerateRequest(messages=HELLO, sampling=Sampling(logit_bias={1: 101})), InvalidRequest, "101"),
        (GenerateRequest(messages=HELLO, top_logprobs=21), InvalidRequest, "top_logprobs is 21"),
        (GenerateRequest(messages=HELLO, response_format=ResponseFormat("yaml")), InvalidRequest, "yaml"),
        (GenerateRequest(messages=HELLO, response_format=ResponseFormat("choice")), InvalidRequest, "choices"),
        (
            GenerateRequest(messages=HELLO, response_format=ResponseFormat("choice", "", ("a", "a"))),
            InvalidRequest,
            "differ",
        ),
        (GenerateRequest(messages=HELLO, response_format=ResponseFormat("json_schema")), InvalidRequest, "schema"),
        (GenerateRequest(messages=HELLO, response_format=replace(SCHEMA, name="x" * (64 << 10))), TooLarge, "schema"),
        (
            GenerateRequest(messages=HELLO, response_format=replace(SCHEMA, description="x" * (64 << 10))),
            TooLarge,
            "schema",
        ),
        (GenerateRequest(messages=HELLO, tools=(Tool("a b"),)), InvalidRequest, "a b"),
        (GenerateRequest(messages=HELLO, tools=(Tool("a"), Tool("a"))), InvalidRequest, "same name"),
        (GenerateRequest(messages=HELLO, tool_choice="required"), InvalidRequest, "no tools"),
        (GenerateRequest(messages=HELLO, tools=(Tool("a"),), tool_choice="function:b"), InvalidRequest, "'b'"),
        (GenerateRequest(messages=HELLO, tools=(Tool("a"),), tool_choice="maybe"), InvalidRequest, "maybe"),
        (
            GenerateRequest(messages=(*HELLO, Message("user", "x", (ToolCall("1", "a", "{}"),)))),
            InvalidRequest,
            "only an assistant's",
        ),
    ],
)
def test_a_fault_is_named(request_: GenerateRequest, kind: type[WeirError], word: str) -> None:
    with pytest.raises(kind, match=word):
        check_request(request_, LIMITS)


@pytest.mark.parametrize(("rule", "expected"), [("end", None), ("prefix:8", 8), ("prefix:4096", 4096)])
def test_commit_rules(rule: str, expected: int | None) -> None:
    assert commit_prefix(rule) == expected


@pytest.mark.parametrize(
    "rule", ["prefix:", "prefix:0", "prefix:-1", "prefix:x", "prefix:5000", "END", "prefix:²", "prefix:" + "9" * 5000]
)
def test_commit_rules_that_are_none(rule: str) -> None:
    with pytest.raises(InvalidRequest):
        commit_prefix(rule)


@pytest.mark.parametrize(
    "request_",
    [
        GenerateRequest(messages=(Message("r" * 100_000, "x"),)),
        GenerateRequest(messages=HELLO, constraints=Constraints(commit_rule="x" * 100_000)),
    ],
)
def test_a_long_fault_is_not_told_whole(request_: GenerateRequest) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_request(request_, LIMITS)
    assert len(caught.value.message) < 200
    assert "use" in caught.value.message


@pytest.mark.parametrize(
    ("request_", "kind", "word"),
    [
        (ClassifyRequest(text=" "), InvalidRequest, "empty"),
        (ClassifyRequest(text="x" * 600, text_pair="y" * 600), TooLarge, "1200"),
        (ClassifyRequest(text="x", top_labels=-1), InvalidRequest, "top_labels"),
        (ClassifyRequest(text="x", constraints=Constraints(max_risk=2)), InvalidRequest, "max_risk"),
        (ClassifyRequest(text="x", constraints=Constraints(commit_rule="prefix:4")), InvalidRequest, "commit_rule"),
        (ClassifyRequest(text="x", hops=5), PreconditionFailed, "own upstream"),
        (ClassifyRequest(text="x", input_ids=(1,)), InvalidRequest, "not both"),
        (ClassifyRequest(text_pair="x", input_ids=(1,)), InvalidRequest, "not both"),
        (ClassifyRequest(token_type_ids=(1,)), InvalidRequest, "input_ids, which is empty"),
        (ClassifyRequest(input_ids=(3, -1)), InvalidRequest, "input_ids has -1 at position 1"),
        (ClassifyRequest(input_ids=(3, 1 << 31)), InvalidRequest, "input_ids has 2147483648 at position 1"),
        (ClassifyRequest(input_ids=(1,) * ((1 << 16) + 1)), TooLarge, "65537"),
        (ClassifyRequest(input_ids=(1, 2), token_type_ids=(0,)), InvalidRequest, "token_type_ids has 1 entries for 2"),
        (ClassifyRequest(input_ids=(1, 2), token_type_ids=(0, 2)), InvalidRequest, "token_type_ids has 2 at position"),
        (ClassifyRequest(input_ids=(1,), constraints=CLOUD_ONLY), InvalidRequest, "cloud_only cannot be kept"),
        (ClassifyRequest(input_ids=(1,), top_labels=-1), InvalidRequest, "top_labels"),
    ],
)
def test_a_fault_in_a_text_to_label_is_named(request_: ClassifyRequest, kind: type[WeirError], word: str) -> None:
    check_classify(ClassifyRequest(text="hello"), LIMITS)
    check_classify(ClassifyRequest(input_ids=(0, 5), token_type_ids=(0, 1)), LIMITS)
    with pytest.raises(kind, match=word):
        check_classify(request_, LIMITS)


@pytest.mark.parametrize("field", ["input_ids", "token_type_ids"])
def test_ids_are_counted_before_they_are_read(field: str) -> None:
    request = ClassifyRequest(**{field: (1,) * (MOST_IDS + 1)})
    with pytest.raises(TooLarge, match=f"{field} has 65537 entries; at most 65536"):
        classify_request_in(classify_request_out(request))


@pytest.mark.parametrize(
    ("request_", "kind", "word"),
    [
        (ScoreRequest(prompt="x"), InvalidRequest, "no continuation"),
        (ScoreRequest(prompt="x", continuations=("a",) * 65), InvalidRequest, "65"),
        (ScoreRequest(prompt="x", continuations=("a", "")), InvalidRequest, "empty"),
        (ScoreRequest(prompt="x", continuations=("a" * 1001,)), TooLarge, "1001"),
        (ScoreRequest(continuations=("a",)), InvalidRequest, "messages"),
    ],
)
def test_a_fault_in_continuations_is_named(request_: ScoreRequest, kind: type[WeirError], word: str) -> None:
    check_score(ScoreRequest(prompt="x", continuations=("a", "b")), LIMITS)
    with pytest.raises(kind, match=word):
        check_score(request_, LIMITS)


def test_what_a_request_needs_is_refused_by_name() -> None:
    plain = GenerateRequest(messages=HELLO)
    assert needs(plain) == frozenset()
    rich = GenerateRequest(
        messages=(*HELLO, Message("tool", "7", tool_call_id="1")),
        sampling=Sampling(temperature=0.7, min_p=0.1, logit_bias={3: 1.0}),
        return_logprobs=True,
        top_logprobs=2,
        tools=(Tool("look"),),
        response_format=ResponseFormat("json_object"),
    )
    assert needs(rich) == {
        "sample", "min_p", "penalties", "logprobs", "top_logprobs", "tools", "tool_turns", "json_schema",
    }  # fmt: skip
    with pytest.raises(NotSupported, match="this engine does not serve json_schema, tools"):
        demand_capable(rich, needs(rich) - {"tools", "json_schema"}, "this engine")
    demand_capable(rich, needs(rich), "this engine")
