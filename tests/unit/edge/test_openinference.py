"""The Open Inference Protocol by gRPC over real sockets and fake tiers: both contents, readiness, bad input."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from edge.engine.waiting import MOST_LEVELS, level
from edge.openinference.provenance import shared
from protos.inference import open_inference_pb2 as pb
from tests.fakes.inference import FakeInference
from tests.fakes.open_inference import WORDS, asking, method, output, speaking
from wire.messages import Final, Tier, Usage
from wire.openinference.messages import SERVICE_NAME


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


async def test_tokens_that_edges_spent_are_told_where_every_element_spent_as_many() -> None:
    spent = Final("stop", Usage(3, 3), Tier.CLOUD, edge_tokens_spent=4)
    async with speaking(FakeInference(final=spent)) as target, grpc.aio.insecure_channel(target) as channel:
        infer = method(channel, "ModelInfer", pb.ModelInferResponse)
        for texts in (("a",), ("a", "b")):
            assert (await infer(asking(*texts))).parameters["weir_edge_tokens_spent"].int64_param == 4
    assert shared([spent, replace(spent, edge_tokens_spent=0)]).keys() == shared([spent]).keys() - {
        "weir_edge_tokens_spent"
    }


# Triton's priority, where 1 is the highest, and Weir's, where higher goes first.
PRIORITIES = ((0, 0), (1, 8), (2, 7), (8, 1), (9, 0), (10, -1), (17, -8), (1 << 40, -8))


async def test_priority_counts_as_tritons_clients_mean_it() -> None:
    service = FakeInference()
    async with speaking(service) as target, grpc.aio.insecure_channel(target) as channel:
        infer = method(channel, "ModelInfer", pb.ModelInferResponse)
        for given, _ in PRIORITIES:
            request = asking("hi")
            request.parameters["priority"].uint64_param = given  # as tritonclient sends it
            await infer(request)
            await infer(asking("hi", priority=str(given)))
    told = [priority for _, priority in PRIORITIES]
    assert [asked.context.priority for asked in service.requests] == [each for each in told for _ in range(2)]
    # All levels that count are in reach: the highest, the lowest, and every one between.
    assert (level(told[1], None), level(told[-1], None)) == (MOST_LEVELS, -MOST_LEVELS)


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
    (lambda r: r.parameters["priority"].MergeFrom(_param("-1")), "INVALID_ARGUMENT", "priority is -1; 0 is the usual"),
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
