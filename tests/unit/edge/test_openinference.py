"""The Open Inference Protocol over real sockets and fake tiers: gRPC, REST, both contents, bad input."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from fastapi import FastAPI
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from edge.http.app import HttpSettings, make_app
from edge.openinference.face import FaceSettings, NodeFace
from edge.openinference.rest import add_open_inference as add_rest
from protos.inference import open_inference_pb2 as pb
from runtime.http_server import HttpServer
from tests.fakes.classifier import CLASSIFIER, LABELS, FakeClassifier
from tests.fakes.inference import FakeInference
from wire.channel import bind, open_server
from wire.errors import Overloaded, WeirError
from wire.grpc_server import HealthReporter, add_inference
from wire.messages import Tier, TierConstraint
from wire.openinference.messages import SERVICE_NAME
from wire.openinference.server import add_open_inference

HELLO = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["hi"]}
WORDS = "one two three"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def face(service: FakeInference, classifier: FakeClassifier | None = None, **settings: Any) -> NodeFace:
    return NodeFace(service, FaceSettings(**settings), classifier)


def labelling() -> FakeInference:
    return FakeInference(Tier.EDGE, model=CLASSIFIER)


@asynccontextmanager
async def rest(service: FakeInference, classifier: FakeClassifier | None = None, **settings: Any) -> AsyncIterator[Any]:
    http = HttpSettings(max_body_bytes=1 << 20)
    app: FastAPI = make_app(service, http)
    add_rest(app, face(service, classifier, **settings), http)
    server = HttpServer(app, "127.0.0.1:0")
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://{server.address}", timeout=20, trust_env=False) as client:
            yield client
    finally:
        await server.stop()


@asynccontextmanager
async def speaking(service: FakeInference, classifier: FakeClassifier | None = None) -> AsyncIterator[str]:
    server = open_server()
    add_inference(server, service, 10.0)
    add_open_inference(server, face(service, classifier), 10.0)
    await HealthReporter(server, others=(SERVICE_NAME,)).set(serving=True)
    port = bind(server, "127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


def method(channel: grpc.aio.Channel, name: str, answer: Any) -> Any:
    return channel.unary_unary(
        f"/{SERVICE_NAME}/{name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=answer.FromString,
    )


def asking(*texts: str, model: str = "fake", **parameters: Any) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model, id="7")
    entry = request.inputs.add(name="text", datatype="BYTES", shape=[len(texts)])
    entry.contents.bytes_contents.extend(text.encode() for text in texts)
    for name, value in parameters.items():
        kind = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}[type(value)]
        setattr(request.parameters[name], kind, value)
    return request


def output(answer: pb.ModelInferResponse, name: str) -> Any:
    return next(entry for entry in answer.outputs if entry.name == name)


# --- gRPC


async def test_grpc_answers_every_element_with_its_provenance() -> None:
    service = FakeInference()
    async with speaking(service) as target, grpc.aio.insecure_channel(target) as channel:
        infer = method(channel, "ModelInfer", pb.ModelInferResponse)
        request = asking("a", "b", max_tokens=5, temperature="0.5", seed=3, stop="X", system="be brief", site="s")
        answer = await infer(request)
    assert [bytes(value) for value in output(answer, "text").contents.bytes_contents] == [WORDS.encode()] * 2
    assert list(output(answer, "completion_tokens").contents.int64_contents) == [3, 3]
    assert list(output(answer, "degraded").contents.bool_contents) == [False, False]
    assert (answer.model_name, answer.id, answer.model_version) == ("fake", "7", "1.0.0+0")
    assert answer.parameters["weir_tier"].string_param == "cloud"
    assert answer.parameters["weir_release"].string_param == "fake@1.0.0+0"
    assert "weir_request_id" not in answer.parameters  # two elements, two ids
    first = service.requests[0]
    assert [(m.role, m.content) for m in first.messages] == [("system", "be brief"), ("user", "a")]
    assert (first.sampling.max_tokens, first.sampling.temperature, first.sampling.seed) == (5, 0.5, 3)
    assert (first.stop, first.context.site) == (("X",), "s")
    assert len({asked.request_id for asked in service.requests}) == 2


async def test_raw_contents_are_answered_raw() -> None:
    service = FakeInference()
    request = asking("hi")
    request.inputs[0].ClearField("contents")
    request.raw_input_contents.append(struct.pack("<I", 2) + b"hi")
    request.outputs.add(name="text")
    request.outputs.add(name="prompt_tokens")
    async with speaking(service) as target, grpc.aio.insecure_channel(target) as channel:
        answer = await method(channel, "ModelInfer", pb.ModelInferResponse)(request)
    assert [entry.name for entry in answer.outputs] == ["text", "prompt_tokens"]
    assert answer.raw_output_contents[0] == struct.pack("<I", len(WORDS)) + WORDS.encode()
    assert answer.raw_output_contents[1] == struct.pack("<q", 3)


async def test_a_prompt_is_raw_text_without_turns() -> None:
    service = FakeInference()
    request = asking("once upon")
    request.inputs[0].name = "prompt"
    async with speaking(service) as target, grpc.aio.insecure_channel(target) as channel:
        await method(channel, "ModelInfer", pb.ModelInferResponse)(request)
    assert (service.requests[0].prompt, service.requests[0].messages) == ("once upon", ())


async def test_metadata_and_readiness() -> None:
    service = FakeInference()
    async with speaking(service) as target, grpc.aio.insecure_channel(target) as channel:
        assert (await method(channel, "ServerLive", pb.ServerLiveResponse)(pb.ServerLiveRequest())).live
        assert (await method(channel, "ServerReady", pb.ServerReadyResponse)(pb.ServerReadyRequest())).ready
        server = await method(channel, "ServerMetadata", pb.ServerMetadataResponse)(pb.ServerMetadataRequest())
        assert (server.name, "binary_tensor_data" in server.extensions) == ("weir", True)
        told = await method(channel, "ModelMetadata", pb.ModelMetadataResponse)(pb.ModelMetadataRequest(name="fake"))
        assert list(told.versions) == ["1.0.0+0"]
        assert [entry.name for entry in told.inputs] == ["text", "prompt"]
        ready = method(channel, "ModelReady", pb.ModelReadyResponse)
        for version in ("", "1.0.0", "1.0.0+0", "fake@1.0.0+0"):
            assert (await ready(pb.ModelReadyRequest(name="fake", version=version))).ready
        service.ready = False
        assert not (await ready(pb.ModelReadyRequest(name="fake"))).ready
        for name, version in (("other", ""), ("fake", "2.0.0")):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ready(pb.ModelReadyRequest(name=name, version=version))
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def _raw_and_typed(request: pb.ModelInferRequest) -> None:
    request.raw_input_contents.append(b"")


def _broken_raw(request: pb.ModelInferRequest) -> None:
    request.inputs[0].ClearField("contents")
    request.raw_input_contents.append(struct.pack("<I", 9) + b"hi")


def _ids(request: pb.ModelInferRequest) -> None:
    request.inputs[0].name, request.inputs[0].datatype = "input_ids", "INT64"
    request.inputs[0].ClearField("contents")
    request.inputs[0].contents.int64_contents.append(1)


BAD_GRPC: list[tuple[Any, str, str]] = [
    (lambda r: setattr(r.inputs[0], "name", "words"), "INVALID_ARGUMENT", "'words' is not one of"),
    (lambda r: setattr(r.inputs[0], "datatype", "TEXT"), "UNIMPLEMENTED", "datatype"),
    (lambda r: setattr(r.inputs[0], "datatype", "FP32"), "INVALID_ARGUMENT", "belongs into fp32_contents"),
    (lambda r: r.inputs[0].shape.append(2), "INVALID_ARGUMENT", "1 elements"),
    (lambda r: r.inputs[0].shape.__setitem__(0, -1), "INVALID_ARGUMENT", "0 or more"),
    (lambda r: r.inputs[0].shape.__setitem__(0, 1 << 40), "RESOURCE_EXHAUSTED", "at most"),
    (lambda r: r.inputs[0].shape.__setitem__(0, 0), "INVALID_ARGUMENT", "shape"),
    (_raw_and_typed, "INVALID_ARGUMENT", "both"),
    (_broken_raw, "INVALID_ARGUMENT", "break off"),
    (_ids, "UNIMPLEMENTED", "input_ids"),
    (lambda r: r.inputs[0].contents.bytes_contents.__setitem__(0, b"\xff"), "INVALID_ARGUMENT", "UTF-8"),
    (lambda r: r.inputs[0].parameters["shared_memory_region"].MergeFrom(_param("x")), "INVALID_ARGUMENT", "shared_"),
    (lambda r: r.parameters["beam_width"].MergeFrom(_param("4")), "INVALID_ARGUMENT", "beam_width"),
    (lambda r: r.parameters["max_tokens"].MergeFrom(_param("many")), "INVALID_ARGUMENT", "max_tokens"),
    (lambda r: r.parameters["stop_list"].MergeFrom(_param("x")), "INVALID_ARGUMENT", "stop_list"),
    (lambda r: r.parameters["constraint"].MergeFrom(_param("moon")), "INVALID_ARGUMENT", "edge_only"),
    (lambda r: r.outputs.add(name="logits"), "INVALID_ARGUMENT", "logits"),
    (lambda r: r.ClearField("inputs"), "INVALID_ARGUMENT", "one input"),
]


def _param(text: str) -> pb.InferParameter:
    return pb.InferParameter(string_param=text)


@pytest.mark.parametrize(("spoil", "code", "words"), BAD_GRPC)
async def test_what_does_not_fit_is_refused_by_name(spoil: Any, code: str, words: str) -> None:
    service = FakeInference()
    request = asking("hi")
    spoil(request)
    async with speaking(service) as target, grpc.aio.insecure_channel(target) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(channel, "ModelInfer", pb.ModelInferResponse)(request)
    assert caught.value.code().name == code
    assert words in (caught.value.details() or "")
    assert service.requests == []


async def test_a_fault_of_one_element_ends_the_others() -> None:
    classifier = FakeClassifier(fail_on="b", fail=Overloaded("the queue is full"), step_s=0.05)
    async with speaking(labelling(), classifier) as target, grpc.aio.insecure_channel(target) as channel:
        infer = method(channel, "ModelInfer", pb.ModelInferResponse)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await infer(asking("a", "b", *("c",) * 38, model="sizes"))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert classifier.running == 0
        assert classifier.most_running == 40


async def test_a_grpc_client_that_leaves_frees_its_slots() -> None:
    service = FakeInference(hang=True)
    async with speaking(service) as target, grpc.aio.insecure_channel(target) as channel:
        call = method(channel, "ModelInfer", pb.ModelInferResponse)(asking("a", "b"))
        while service.slots_used < 2:
            await asyncio.sleep(0.01)
        call.cancel()
        async with asyncio.timeout(2):
            while service.slots_used:
                await asyncio.sleep(0.01)


async def test_a_stream_comes_piece_by_piece_and_survives_a_bad_request() -> None:
    service = FakeInference()
    async with speaking(service) as target, grpc.aio.insecure_channel(target) as channel:
        stream = channel.stream_stream(
            f"/{SERVICE_NAME}/ModelStreamInfer",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )()
        await stream.write(asking("hi", beam_width="4"))
        refused = await stream.read()
        assert "beam_width" in refused.error_message
        await stream.write(asking("hi", triton_enable_empty_final_response=True))
        pieces = []
        while not pieces or not pieces[-1].parameters["triton_final_response"].bool_param:
            pieces.append((await stream.read()).infer_response)
        await stream.done_writing()
        assert await stream.read() == grpc.aio.EOF
    texts = [output(piece, "text").contents.bytes_contents[0].decode() for piece in pieces]
    assert texts == ["one", " two", " three", ""]
    assert service.requests[0].constraints.commit_rule == "prefix:8"
    assert output(pieces[-1], "finish_reason").contents.bytes_contents[0] == b"stop"
    assert pieces[-1].parameters["weir_tier"].string_param == "cloud"


async def test_classes_scores_and_logits_in_the_order_of_the_classes() -> None:
    classifier = FakeClassifier()
    request = asking("hello you", "hi", model="sizes")
    async with speaking(labelling(), classifier) as target, grpc.aio.insecure_channel(target) as channel:
        infer = method(channel, "ModelInfer", pb.ModelInferResponse)
        answer = await infer(request)
        request.outputs.add(name="logits")
        logits = await infer(request)
        told = await method(channel, "ModelMetadata", pb.ModelMetadataResponse)(pb.ModelMetadataRequest(name="sizes"))
    assert [v.decode() for v in output(answer, "label").contents.bytes_contents] == ["medium", "short"]
    assert [v.decode() for v in output(answer, "classes").contents.bytes_contents] == list(LABELS)
    scores = output(answer, "scores")
    assert list(scores.shape) == [2, 3]
    assert list(scores.contents.fp32_contents) == pytest.approx([0.2, 0.6, 0.2, 0.6, 0.2, 0.2])
    assert list(output(answer, "holds").contents.bool_contents) == [False, True, False, True, False, False]
    assert "logits" not in [entry.name for entry in answer.outputs]
    assert not classifier.requests[0].return_logits
    assert list(output(logits, "logits").contents.fp32_contents) == [0, 2, 0, 2, 0, 0]
    assert {entry.name: list(entry.shape) for entry in told.outputs}["scores"] == [-1, 3]


async def test_several_labels_may_hold() -> None:
    classifier = FakeClassifier(multi_label=True)
    async with speaking(labelling(), classifier) as target, grpc.aio.insecure_channel(target) as channel:
        answer = await method(channel, "ModelInfer", pb.ModelInferResponse)(asking("hi", model="sizes"))
    assert list(output(answer, "holds").contents.bool_contents) == [True, True, False]


async def test_reflection_and_health_know_the_service() -> None:
    async with speaking(FakeInference()) as target:
        text = await asyncio.to_thread(_by_reflection, target)
        assert text == WORDS
        async with grpc.aio.insecure_channel(target) as channel:
            asked = health_pb2.HealthCheckRequest(service=SERVICE_NAME)
            assert (await health_pb2_grpc.HealthStub(channel).Check(asked)).status == 1


def _by_reflection(target: str) -> str:
    with grpc.insecure_channel(target) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert SERVICE_NAME in database.get_services()
        found = DescriptorPool(database).FindServiceByName(SERVICE_NAME).FindMethodByName("ModelInfer")
        request = GetMessageClass(found.input_type).FromString(asking("hi").SerializeToString())
        answer = channel.unary_unary(
            f"/{SERVICE_NAME}/ModelInfer",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(found.output_type).FromString,
        )(request, timeout=10)
        return str(output(answer, "text").contents.bytes_contents[0].decode())


# --- REST


async def test_rest_answers_in_json() -> None:
    service = FakeInference()
    body = {"id": "9", "inputs": [HELLO], "parameters": {"max_tokens": 4, "temperature": 0, "constraint": "cloud_only"}}
    async with rest(service) as client:
        answer = (await client.post("/v2/models/fake/infer", json=body)).json()
        versioned = await client.post("/v2/models/fake/versions/1.0.0/infer", json=body)
    assert versioned.json()["model_version"] == "1.0.0"
    assert (answer["model_name"], answer["id"], answer["parameters"]["weir_tier"]) == ("fake", "9", "cloud")
    assert answer["parameters"]["weir_node"] == "fake"
    told = {entry["name"]: entry["data"] for entry in answer["outputs"]}
    assert told["text"] == [WORDS]
    assert told["confidence"] == [None]
    assert service.requests[0].constraints.tier is TierConstraint.CLOUD_ONLY


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
    ({"inputs": [{**HELLO, "shape": "1"}]}, "shape"),
    ({"inputs": [{**HELLO, "extra": 1}]}, "extra"),
    ({"inputs": [{**HELLO, "parameters": {"binary_data_size": 9}}]}, "both"),
    ({"inputs": [HELLO, HELLO]}, "twice"),
    ({"inputs": "hi"}, "list"),
    ({"inputs": [HELLO], "model": "x"}, "'model'"),
    ({"inputs": [HELLO], "parameters": {"temperature": [1]}}, "temperature"),
    ({"inputs": [HELLO], "parameters": {"temperature": 9}}, "temperature"),
    ({"inputs": [HELLO], "parameters": {"timeout": 0}}, "timeout"),
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
