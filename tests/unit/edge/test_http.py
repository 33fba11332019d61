"""The OpenAI face over real sockets and a fake tier: answers, streams, bad input, clients that leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest

from edge.http.app import make_app
from edge.http.settings import HttpSettings
from runtime.http_server import HttpServer
from tests.fakes.inference import FakeInference
from wire.errors import (
    ContextTooLong,
    DeadlineExceeded,
    NotFound,
    NotSupported,
    Overloaded,
    Unavailable,
    WeirError,
)
from wire.messages import Final, GenerateEvent, GenerateRequest, Tier, TierConstraint, Usage
from wire.service import Call

BODY: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


@asynccontextmanager
async def serving(service: FakeInference, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    server = HttpServer(make_app(service, HttpSettings(**settings)), "127.0.0.1:0")
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://{server.address}", timeout=20, trust_env=False) as client:
            yield client
    finally:
        await server.stop()


def official(client: httpx.AsyncClient) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{client.base_url}/v1", api_key="unused", max_retries=0)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


async def test_the_official_client_gets_an_answer_with_its_provenance() -> None:
    service = FakeInference()
    async with serving(service) as client:
        answer = await official(client).chat.completions.create(
            model="fake", messages=[{"role": "user", "content": "hi"}], max_completion_tokens=7, user="someone"
        )
    assert answer.choices[0].message.content == "one two three"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 6
    assert answer.model_extra is not None
    assert answer.model_extra["weir"]["tier"] == "cloud"
    assert answer.model_extra["weir"]["release"] == "fake@1.0.0+0"
    assert service.requests[0].sampling.max_tokens == 7
    assert service.requests[0].constraints.commit_rule == ""


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_that_edges_spent_stand_beside_usage_and_not_in_it(stream: bool) -> None:
    final = Final("stop", Usage(5, 3), Tier.CLOUD, edge_tokens_spent=4)
    async with serving(FakeInference(final=final)) as client:
        body = {**BODY, "stream": stream} | ({"stream_options": {"include_usage": True}} if stream else {})
        answer = await client.post("/v1/chat/completions", json=body)
    told = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    last = json.loads(told[-1]) if stream else answer.json()
    assert (last["weir"]["edge_tokens_spent"], last["usage"]["completion_tokens"]) == (4, 3)


async def test_the_official_client_streams() -> None:
    service = FakeInference(words=tuple(f" w{n}" for n in range(20)), step_s=0.02)
    async with serving(service, streaming_rule="prefix:3") as client:
        loop = asyncio.get_running_loop()
        began = loop.time()
        arrivals, texts, last = [], [], None
        stream = await official(client).chat.completions.create(
            model="fake",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                arrivals.append(loop.time() - began)
                texts.append(chunk.choices[0].delta.content)
            last = chunk
    assert "".join(texts) == "".join(service.words)
    assert arrivals[0] < arrivals[-1] / 2
    assert last is not None
    assert last.usage is not None
    assert last.usage.completion_tokens == 20
    assert last.model_extra is not None
    assert last.model_extra["weir"]["reason"] == "cloud_only"
    assert service.requests[0].constraints.commit_rule == "prefix:3"


async def test_events_are_single_lines_and_end_with_done() -> None:
    async with serving(FakeInference(words=("a\nb", "\r\n", "ü\u2028"))) as client:
        answer = await client.post("/v1/chat/completions", json={**BODY, "stream": True})
    assert answer.headers["x-weir-tier"] == "cloud"
    assert answer.headers["x-weir-release"] == "fake@1.0.0+0"
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.content.split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events[:-2]]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "a\nb\r\nü\u2028"
    assert chunks[-1]["weir"]["tier"] == "cloud"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


BAD: list[tuple[str, bytes | dict[str, Any], int, str]] = [
    ("no body", b"", 400, "not JSON"),
    ("not JSON", b"{", 400, "not JSON"),
    ("not an object", b"[]", 400, "object"),
    ("NaN temperature", json.dumps({**BODY, "temperature": float("nan")}).encode(), 400, "NaN"),
    ("infinite temperature", json.dumps({**BODY, "temperature": float("inf")}).encode(), 400, "Infinity"),
    ("huge exponent", json.dumps(BODY).encode()[:-1] + b', "temperature": 1e999}', 400, "temperature"),
    ("invalid UTF-8", b'{"model": "fake", "messages": [{"role": "user", "content": "\xff\xfe"}]}', 400, "UTF-8"),
    ("half a surrogate", b'{"model": "fake", "messages": [{"role": "user", "content": "\\ud800"}]}', 400, "surrogate"),
    ("no model", {"messages": BODY["messages"]}, 400, "model is missing"),
    ("no messages", {"model": "fake"}, 400, "messages is missing"),
    ("unknown field", {**BODY, "best_of": 3}, 400, "best_of is not supported"),
    ("too many answers", {**BODY, "n": 9}, 400, "n: "),
    ("alternatives of nothing", {**BODY, "top_logprobs": 2}, 400, "top_logprobs needs logprobs"),
    ("an image", {**BODY, "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "image_url"),
    ("wrong type", {**BODY, "max_tokens": "ten"}, 400, "max_tokens"),
    ("too many tokens for the wire", {**BODY, "max_tokens": 1 << 40}, 400, "max_tokens"),
    ("two limits", {**BODY, "max_tokens": 1, "max_completion_tokens": 2}, 400, "differ"),
    ("negative seed", {**BODY, "seed": -1}, 400, "seed"),
    ("bad constraint", {**BODY, "weir": {"constraint": "moon"}}, 400, "weir.constraint"),
    ("bad deadline", {**BODY, "weir": {"deadline_ms": 0}}, 400, "deadline"),
    ("deep nesting", b"[" * 200_000, 400, "nested"),
    ("a deep schema", b'{"a":' * 400 + b"1" + b"}" * 400, 400, "nested"),
    ("a million messages", b'{"model": "fake", "messages": [' + b"{}," * 1_000_000 + b"{}]}", 413, "values"),
    ("a hundred thousand options", {**BODY, "weir": {f"o{n}": 1 for n in range(100_000)}}, 413, "values"),
    ("long number", b'{"model": ' + b"9" * 6000 + b"}", 400, "model: a number of 6000 digits is too long"),
    ("long numbers", {**BODY, "logit_bias": {"1": 10**200}}, 400, "logit_bias.1: a number of 201 digits"),
    ("huge in a schema", b'{"tools": [{"maximum": 1e999}]}', 400, "tools[0].maximum: the number 1e999 is too large"),
    ("10 MB prompt", {**BODY, "messages": [{"role": "user", "content": "x" * 10_000_000}]}, 413, "bytes"),
]


async def test_bad_input_is_refused_by_name_and_disturbs_nobody() -> None:
    service = FakeInference(words=tuple(f" w{n}" for n in range(40)), step_s=0.03)
    async with serving(service) as client:

        async def undisturbed() -> str:
            answer = await client.post("/v1/chat/completions", json={**BODY, "stream": True})
            return answer.text

        other = asyncio.create_task(undisturbed())
        for name, content, status, words in BAD:
            sent = {"json": content} if isinstance(content, dict) else {"content": content}
            answer = await client.post("/v1/chat/completions", **sent)  # type: ignore[arg-type]
            assert answer.status_code == status, (name, answer.text)
            assert words in answer.json()["error"]["message"], (name, answer.text)
        assert (await other).endswith("data: [DONE]\n\n")
    assert len(service.requests) == 1


async def test_a_body_without_a_declared_length_is_bounded_too() -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b"x" * 100_000

    async with serving(FakeInference(), max_body_bytes=1 << 20) as client:
        answer = await client.post("/v1/chat/completions", content=endless())
        assert answer.status_code == 413
        assert (await client.post("/v1/chat/completions", json=BODY)).status_code == 200


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NotFound("no such model"), 404, "model_not_found"),
        (ContextTooLong("too long"), 400, "context_length_exceeded"),
        (Overloaded("full"), 429, "overloaded"),
        (Unavailable("gone"), 503, None),
        (NotSupported("this tier does not serve tools"), 400, "not_supported"),
        (DeadlineExceeded("too late"), 504, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_faults_before_the_first_word_are_http_errors(
    error: WeirError, status: int, code: str | None, stream: bool
) -> None:
    async with serving(FakeInference(fail_before=error)) as client:
        answer = await client.post("/v1/chat/completions", json={**BODY, "stream": stream})
    assert answer.status_code == status
    assert answer.json()["error"]["message"] == error.message
    assert answer.json()["error"]["code"] == code


@pytest.mark.parametrize(
    ("error", "tries"), [(NotSupported("no"), 1), (DeadlineExceeded("late"), 1), (Unavailable("gone"), 2)]
)
async def test_the_official_client_tries_again_only_where_that_may_help(error: WeirError, tries: int) -> None:
    asked = []

    class Counting(FakeInference):
        async def generate(self, request: GenerateRequest, call: Call) -> AsyncGenerator[GenerateEvent, None]:
            asked.append(request)
            async for event in super().generate(request, call):
                yield event

    async with serving(Counting(fail_before=error)) as client:
        patient = official(client).with_options(max_retries=1)
        with pytest.raises(openai.APIStatusError):
            await patient.chat.completions.create(model="fake", messages=[{"role": "user", "content": "hi"}])
    assert len(asked) == tries


async def test_a_wrong_method_is_told_the_right_one() -> None:
    async with serving(FakeInference()) as client:
        answer = await client.get("/v1/chat/completions")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        assert answer.json()["error"]["type"] == "invalid_request_error"
        assert (await client.post("/v1/models")).headers["allow"] == "GET"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_fault_nobody_foresaw_has_the_shape_of_the_others_and_keeps_its_text(stream: bool) -> None:
    service = FakeInference(fail_before=RuntimeError("secret"))  # type: ignore[arg-type]
    async with serving(service) as client:
        answer = await client.post("/v1/chat/completions", json={**BODY, "stream": stream})
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert "secret" not in answer.text


async def test_a_fault_after_the_first_word_ends_the_stream_with_an_error_and_without_done() -> None:
    async with serving(FakeInference(fail_after=(2, Unavailable("broke off")))) as client:
        answer = await client.post("/v1/chat/completions", json={**BODY, "stream": True})
        with pytest.raises(openai.APIError, match="broke off"):
            stream = await official(client).chat.completions.create(
                model="fake", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            async for _ in stream:
                pass
    assert "[DONE]" not in answer.text
    assert json.loads(answer.text.split("\n\n")[-2].removeprefix("data: "))["error"]["message"] == "broke off"


@pytest.mark.parametrize("n", [1, 2])
async def test_a_fault_nobody_foresaw_after_the_first_word_ends_the_stream_likewise(
    n: int, caplog: pytest.LogCaptureFixture
) -> None:
    service = FakeInference(fail_after=(2, RuntimeError("secret")))  # type: ignore[arg-type]
    async with serving(service) as client:
        answer = await client.post("/v1/chat/completions", json={**BODY, "stream": True, "n": n})
    told = json.loads(answer.text.split("\n\n")[-2].removeprefix("data: "))["error"]
    assert (told["type"], "[DONE]" in answer.text, "secret" in answer.text) == ("server_error", False, False)
    assert "secret" in caplog.text
    assert service.slots_used == 0


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_usage_is_null_in_every_chunk_but_the_last_where_it_is_asked_for(path: str) -> None:
    ask = {"model": "fake", "stream": True} | ({"prompt": "hi"} if path == "completions" else BODY)
    async with serving(FakeInference()) as client:
        told = await client.post(f"/v1/{path}", json={**ask, "stream_options": {"include_usage": True}})
        plain = await client.post(f"/v1/{path}", json=ask)
    *chunks, last = [json.loads(event.removeprefix("data: ")) for event in told.text.split("\n\n")[:-2]]
    assert len(chunks) > 3
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    assert (last["usage"]["completion_tokens"], last["choices"]) == (3, [])
    assert "usage" not in plain.text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_slot_at_once(stream: bool) -> None:
    service = FakeInference(hang=True)
    async with serving(service) as client:
        body = {**BODY, "stream": stream}
        reader = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        for _ in range(200):
            if service.slots_used:
                break
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        for _ in range(100):
            if service.left:
                break
            await asyncio.sleep(0.01)
    assert service.left == 1
    assert service.slots_used == 0


async def test_weir_options_and_headers_reach_the_request() -> None:
    service = FakeInference()
    async with serving(service) as client:
        await client.post(
            "/v1/chat/completions",
            json={**BODY, "weir": {"session_id": "s", "value": 3, "commit_rule": "end"}, "stop": "X", "seed": 5},
            headers={
                "x-weir-constraint": "edge_only",
                "x-weir-deadline-ms": "4000",
                "idempotency-key": "k",
                "traceparent": "00-1-2-01",
            },
        )
    request, call = service.requests[0], service.calls[0]
    assert request.constraints.tier is TierConstraint.EDGE_ONLY
    assert request.constraints.commit_rule == "end"
    assert (request.context.session_id, request.context.value) == ("s", 3)
    assert (request.stop, request.sampling.seed, request.idempotency_key) == (("X",), 5, "k")
    assert 2 < call.deadline.remaining_s() <= 4
    assert call.traceparent == "00-1-2-01"


async def test_models_and_health() -> None:
    service = FakeInference()
    async with serving(service) as client:
        models = (await client.get("/v1/models")).json()
        assert [model["id"] for model in models["data"]] == ["fake"]
        assert (await client.get("/v1/models/fake")).json()["weir"]["release"] == "fake@1.0.0+0"
        assert (await client.get("/v1/models/other")).status_code == 404
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
        service.ready = False
        assert (await client.get("/readyz")).status_code == 503
        assert (await client.get("/nowhere")).json()["error"]["type"] == "invalid_request_error"
