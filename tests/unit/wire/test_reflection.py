"""A client that has never seen the protos can call a tier through reflection and health alone."""

from __future__ import annotations

import asyncio

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.fakes.inference import FakeInference
from wire.channel import bind, open_server
from wire.grpc_server import HealthReporter, add_inference


def ask_by_reflection(target: str, model: str, text: str) -> list[object]:
    """The events of a Generate call, made with nothing but what the server tells of itself."""
    with grpc.insecure_channel(target) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert "weir.v1.Inference" in database.get_services()
        service = DescriptorPool(database).FindServiceByName("weir.v1.Inference")
        method = service.FindMethodByName("Generate")
        request = GetMessageClass(method.input_type)(model=model)
        request.messages.add(role="user", content=text)
        call = channel.unary_stream(
            f"/{service.full_name}/{method.name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        return list(call(request, timeout=30))


async def test_generate_by_reflection() -> None:
    server = open_server()
    add_inference(server, FakeInference(), 10.0)
    reporter = HealthReporter(server)
    await reporter.set(serving=True)
    target = f"127.0.0.1:{bind(server, '127.0.0.1:0')}"
    await server.start()
    try:
        events = await asyncio.to_thread(ask_by_reflection, target, "fake", "hi")
        assert [event.WhichOneof("event") for event in events] == ["committed", "delta", "delta", "delta", "final"]  # type: ignore[attr-defined]
    finally:
        await server.stop(0)


async def test_health_says_both_states() -> None:
    server = open_server()
    add_inference(server, FakeInference(), 10.0)
    reporter = HealthReporter(server)
    target = f"127.0.0.1:{bind(server, '127.0.0.1:0')}"
    await server.start()
    try:
        async with grpc.aio.insecure_channel(target) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            for serving, expected in ((True, "SERVING"), (False, "NOT_SERVING")):
                await reporter.set(serving=serving)
                for service in ("", "weir.v1.Inference"):
                    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
                    assert health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status) == expected
    finally:
        await server.stop(0)
