"""Every fault in a request is named with its value and what is allowed."""

from __future__ import annotations

import math

import pytest

from wire.errors import InvalidRequest, PreconditionFailed, TooLarge, WeirError
from wire.messages import Constraints, Context, Draft, GenerateRequest, Message, Sampling
from wire.validate import RequestLimits, check_request, commit_prefix

HELLO = (Message("user", "hello"),)
LIMITS = RequestLimits(max_prompt_bytes=1000)


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
