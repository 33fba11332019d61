"""Serves an OpenInference over gRPC as inference.GRPCInferenceService."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import grpc.aio

from wire.channel import Authenticator
from wire.errors import WeirError
from wire.grpc_server import MAX_DEADLINE_S, Handlers, register
from wire.openinference import convert
from wire.openinference.messages import SERVICE_NAME, OpenInference
from wire.service import Call


def add_open_inference(
    server: grpc.aio.Server,
    service: OpenInference,
    default_deadline_s: float,
    authenticator: Authenticator | None = None,
    max_deadline_s: float = MAX_DEADLINE_S,
) -> None:
    """A caller that allows more than `max_deadline_s` is given that, as with wire.grpc_server.add_inference."""
    handlers = Handlers(default_deadline_s, authenticator, max_deadline_s)

    async def live(_data: bytes, _call: Call) -> bytes:
        return convert.live_out()

    async def ready(_data: bytes, call: Call) -> bytes:
        return convert.server_ready_out(await service.server_ready(call))

    async def model_ready(data: bytes, call: Call) -> bytes:
        return convert.model_ready_out(await service.model_ready(*convert.model_in(data), call))

    async def metadata(_data: bytes, call: Call) -> bytes:
        return convert.server_metadata_out(await service.server_metadata(call))

    async def model_metadata(data: bytes, call: Call) -> bytes:
        return convert.model_metadata_out(await service.model_metadata(*convert.model_in(data), call))

    async def infer(data: bytes, call: Call) -> bytes:
        request = convert.infer_in(data)
        return convert.infer_out(await service.infer(request, call), request.raw).SerializeToString()

    methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "ServerLive": handlers.unary("ServerLive", live),
        "ServerReady": handlers.unary("ServerReady", ready),
        "ModelReady": handlers.unary("ModelReady", model_ready),
        "ServerMetadata": handlers.unary("ServerMetadata", metadata),
        "ModelMetadata": handlers.unary("ModelMetadata", model_metadata),
        "ModelInfer": handlers.unary("ModelInfer", infer),
        "ModelStreamInfer": handlers.both_ways("ModelStreamInfer", lambda data, call: _pieces(service, data, call)),
    }
    register(server, SERVICE_NAME, methods)


async def _pieces(service: OpenInference, data: bytes, call: Call) -> AsyncGenerator[bytes, None]:
    """The pieces of one request of a stream; its failure is told in the stream, which goes on."""
    request_id = ""
    try:
        request = convert.infer_in(data)
        request_id = request.id
        async with aclosing(service.stream(request, call)) as pieces:
            async for piece in pieces:
                yield convert.piece_out(piece, request.raw)
    except WeirError as error:
        yield convert.failed_out(error.message, request_id)
