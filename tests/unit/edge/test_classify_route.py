"""POST /v1/classify takes what the OpenAI routes take beside the text, and refuses in the same words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from edge.http.app import make_app
from edge.http.classify import add_classify
from edge.http.settings import HttpSettings
from tests.fakes.classifier import CLASSIFIER, FakeClassifier
from tests.fakes.inference import FakeInference
from wire.errors import NotSupported
from wire.messages import Constraints, Context, TierConstraint


@asynccontextmanager
async def serving(classifier: FakeClassifier) -> AsyncIterator[httpx.AsyncClient]:
    app = make_app(FakeInference(model=CLASSIFIER), HttpSettings())
    add_classify(app, classifier, HttpSettings())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://node") as client:
        yield client


async def test_options_and_headers_reach_the_request() -> None:
    classifier = FakeClassifier()
    weir = {"session_id": "s", "value": 3, "max_risk": 0.1, "priority": 2, "subject": "x"}
    headers = {"x-weir-hops": "3", "x-weir-constraint": "edge_only", "idempotency-key": "k"}
    async with serving(classifier) as client:
        answer = await client.post("/v1/classify", json={"text": ["a", "b"], "weir": weir}, headers=headers)
    assert [entry["label"] for entry in answer.json()["data"]] == ["short", "short"]
    first, second = classifier.requests
    assert (first.hops, first.constraints) == (3, Constraints(TierConstraint.EDGE_ONLY, 0.1))
    assert first.context == Context("s", value=3.0, priority=2, subject="x")
    assert (first.idempotency_key, second.idempotency_key) == ("k-0", "k-1")


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"text": "a", "colour": "red"}, "colour", "unsupported_parameter"),
    ({}, "text", "missing_required_parameter"),
    ({"text": 7}, "text", "invalid_value"),
    ({"text": {"a": 1}}, "text", "invalid_value"),
    ({"text": []}, "text", "invalid_value"),
    ({"text": ["a", 1]}, "text[1]", "invalid_value"),
    ({"text": "a", "top_labels": -1}, "top_labels", "invalid_value"),
    ({"text": "a", "weir": {"constraint": "moon"}}, "weir.constraint", "invalid_value"),
    ({"text": "a", "weir": {"commit_rule": "end"}}, "weir.commit_rule", "unsupported_parameter"),
]


@pytest.mark.parametrize(("body", "param", "code"), REFUSED)
async def test_faults_name_their_field(body: dict[str, Any], param: str, code: str) -> None:
    classifier = FakeClassifier()
    async with serving(classifier) as client:
        answer = await client.post("/v1/classify", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)
    assert param in error["message"]
    assert classifier.requests == []


@pytest.mark.parametrize(
    ("headers", "words"), [({"x-weir-hops": "many"}, "x-weir-hops"), ({"x-weir-constraint": "moon"}, "edge_only")]
)
async def test_bad_headers_are_refused(headers: dict[str, str], words: str) -> None:
    async with serving(FakeClassifier()) as client:
        answer = await client.post("/v1/classify", json={"text": "a"}, headers=headers)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


async def test_a_null_was_not_given_and_broken_text_is_refused() -> None:
    async with serving(FakeClassifier()) as client:
        assert (await client.post("/v1/classify", json={"text": "a", "top_labels": None})).status_code == 200
        broken = await client.post("/v1/classify", content=b'{"text": "\\ud800"}')
    assert (broken.status_code, "surrogate" in broken.text) == (400, True)


async def test_what_is_not_served_need_not_be_asked_again() -> None:
    async with serving(FakeClassifier(fail_on="a", fail=NotSupported("no pairs"))) as client:
        answer = await client.post("/v1/classify", json={"text": "a"})
    assert (answer.status_code, answer.headers["x-should-retry"]) == (400, "false")
