"""The Open Inference Protocol by REST over real sockets and fake tiers: JSON, binary, bad input, bounds."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

import pytest

from tests.fakes.inference import FakeInference
from tests.fakes.open_inference import HELLO, WORDS, labelling, rest
from wire.errors import Overloaded, WeirError
from wire.messages import TierConstraint


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


async def test_rest_answers_in_json() -> None:
    service = FakeInference()
    said = {"max_tokens": 4, "temperature": 0, "constraint": "cloud_only", "priority": 1}
    body = {"id": "9", "inputs": [HELLO], "parameters": said}
    async with rest(service) as client:
        answer = (await client.post("/v2/models/fake/infer", json=body)).json()
        versioned = await client.post("/v2/models/fake/versions/1.0.0/infer", json=body)
    assert versioned.json()["model_version"] == "1.0.0"
    assert (answer["model_name"], answer["id"], answer["parameters"]["weir_tier"]) == ("fake", "9", "cloud")
    assert answer["parameters"]["weir_node"] == "fake"
    assert answer["parameters"]["weir_edge_tokens_spent"] == 0
    told = {entry["name"]: entry["data"] for entry in answer["outputs"]}
    assert told["text"] == [WORDS]
    assert told["confidence"] == [None]
    assert service.requests[0].constraints.tier is TierConstraint.CLOUD_ONLY
    assert service.requests[0].context.priority == 8  # the highest, as Triton's 1


async def test_rest_takes_and_gives_tensors_in_binary() -> None:
    contents = struct.pack("<I", 2) + b"hi" + struct.pack("<I", 3) + b"you"
    entry = {"name": "text", "datatype": "BYTES", "shape": [2, 1], "parameters": {"binary_data_size": len(contents)}}
    outputs = [
        {"name": "text", "parameters": {"binary_data": True}},
        {"name": "finish_reason"},
        {"name": "completion_tokens", "parameters": {"binary_data": True}},
    ]
    head = json.dumps({"inputs": [entry], "outputs": outputs}).encode()
    length = {"inference-header-content-length": str(len(head))}
    service = FakeInference()
    async with rest(service) as client:
        answer = await client.post("/v2/models/fake/infer", content=head + contents, headers=length)
        whole = json.dumps({"inputs": [HELLO], "parameters": {"binary_data_output": True}}).encode()
        all_binary = await client.post("/v2/models/fake/infer", content=whole)
    split = int(answer.headers["inference-header-content-length"])
    document, tail = json.loads(answer.content[:split]), answer.content[split:]
    assert [m.messages[0].content for m in service.requests[:2]] == ["hi", "you"]
    sizes = [entry.get("parameters", {}).get("binary_data_size") for entry in document["outputs"]]
    assert sizes == [2 * (4 + len(WORDS)), None, 16]
    assert document["outputs"][1]["data"] == ["stop", "stop"]
    assert tail[-16:] == struct.pack("<2q", 3, 3)
    split = int(all_binary.headers["inference-header-content-length"])
    assert all("data" not in entry for entry in json.loads(all_binary.content[:split])["outputs"])


async def test_rest_metadata_health_and_unknown_paths() -> None:
    service = FakeInference()
    async with rest(service) as client:
        assert (await client.get("/v2")).json()["name"] == "weir"
        assert (await client.get("/v2/health/live")).json() == {"live": True}
        assert (await client.get("/v2/health/ready")).json() == {"ready": True}
        assert (await client.get("/v2/models/fake")).json()["versions"] == ["1.0.0+0"]
        assert (await client.get("/v2/models/fake/ready")).json() == {"name": "fake", "ready": True}
        assert (await client.get("/v2/models/fake/versions/1.0.0%2B0/ready")).status_code == 200
        for path in ("/v2/models/other", "/v2/models/fake/versions/7/ready", "/v2/nothing"):
            answer = await client.get(path)
            assert (answer.status_code, list(answer.json())) == (404, ["error"])
        service.ready = False
        assert (await client.get("/v2/health/ready")).status_code == 503
        assert (await client.get("/v2/models/fake/ready")).status_code == 503


BAD_REST: list[tuple[dict[str, Any], str]] = [
    ({"inputs": [{**HELLO, "shape": [2]}]}, "1 elements"),
    ({"inputs": [{**HELLO, "data": [1]}]}, "holds 1"),
    ({"inputs": [{**HELLO, "data": "hi"}]}, "list"),
    ({"inputs": [{**HELLO, "data": [[[[[[[[[["hi"]]]]]]]]]]}]}, "nested"),
    ({"inputs": [{**HELLO, "data": ["\ud800"]}]}, "surrogate"),
    ({"inputs": [{**HELLO, "data": [["hi"]]}]}, "nested otherwise"),
    ({"inputs": [{**HELLO, "shape": [2, 1], "data": [["hi", "you"], []]}]}, "nested otherwise than its shape: 2 for 1"),
    ({"inputs": [{**HELLO, "shape": [2, 1], "data": [["hi"], "you"]}]}, "nested otherwise"),
    ({"inputs": [{**HELLO, "shape": "1"}]}, "shape"),
    ({"inputs": [{**HELLO, "extra": 1}]}, "extra"),
    ({"inputs": [{**HELLO, "parameters": {"binary_data_size": 9}}]}, "both"),
    ({"inputs": [HELLO, HELLO]}, "twice"),
    ({"inputs": "hi"}, "list"),
    ({"inputs": [HELLO], "model": "x"}, "'model'"),
    ({"inputs": [HELLO], "parameters": {"temperature": [1]}}, "temperature"),
    ({"inputs": [HELLO], "parameters": {"temperature": 9}}, "temperature"),
    ({"inputs": [HELLO], "parameters": {"timeout": 0}}, "timeout"),
    ({"inputs": [HELLO], "parameters": {"priority": -3}}, "priority is -3"),
    ({"inputs": [HELLO], "outputs": [{"name": "text"}, {"name": "text"}]}, "twice"),
]


@pytest.mark.parametrize(("body", "words"), BAD_REST)
async def test_rest_refuses_by_name(body: dict[str, Any], words: str) -> None:
    from tests.fakes.node import FakeNode, cloud, engine

    node = await FakeNode(engine(), cloud()).ready()
    service = FakeInference()
    service.generate = node.generate  # type: ignore[method-assign, assignment]
    async with rest(service) as client:
        answer = await client.post("/v2/models/fake/infer", content=json.dumps(body).encode())
    if answer.status_code == 404:  # the node serves another name, and is asked only when all else is right
        pytest.fail(answer.text)
    assert answer.status_code == 400
    assert words in answer.json()["error"]


async def test_rest_bounds_bodies_batches_and_lengths() -> None:
    service = FakeInference()
    many = {**HELLO, "shape": [65], "data": ["hi"] * 65}
    async with rest(service) as client:
        assert (await client.post("/v2/models/fake/infer", json={"inputs": [many]})).status_code == 413
        assert (await client.post("/v2/models/fake/infer", content=b"x" * (2 << 20))).status_code == 413
        for length in ("99", "-1", "x"):
            headers = {"inference-header-content-length": length}
            assert (await client.post("/v2/models/fake/infer", content=b"{}", headers=headers)).status_code == 400
        headers = {"inference-header-content-length": "2"}
        behind = await client.post("/v2/models/fake/infer", content=b"{}xx", headers=headers)
        assert (behind.status_code, "2 bytes" in behind.json()["error"]) == (400, True)
        packed = await client.post("/v2/models/fake/infer", content=b"x", headers={"content-encoding": "gzip"})
        assert packed.status_code == 400
    assert service.requests == []


async def test_elements_run_a_few_at_a_time_and_a_leaving_client_ends_them() -> None:
    service = FakeInference(hang=True)
    body = {"inputs": [{**HELLO, "shape": [20], "data": ["hi"] * 20}]}
    async with rest(service, max_running=3) as client:
        asking_ = asyncio.create_task(client.post("/v2/models/fake/infer", json=body))
        while service.slots_used < 3:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert service.slots_used == 3
        asking_.cancel()
        async with asyncio.timeout(2):
            while service.slots_used:
                await asyncio.sleep(0.01)
    assert len(service.requests) == 3


async def test_a_fault_keeps_its_status() -> None:
    for error, status in ((Overloaded("full"), 429), (WeirError("broken"), 500)):
        service = FakeInference(fail_after=(1, error))
        async with rest(service) as client:
            answer = await client.post("/v2/models/fake/infer", json={"inputs": [HELLO]})
        assert (answer.status_code, answer.json()["error"]) == (status, error.message)
    async with rest(labelling()) as client:
        assert (await client.post("/v2/models/sizes/infer", json={"inputs": [HELLO]})).status_code == 501
