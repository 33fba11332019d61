"""Fake tiers behind the Open Inference Protocol on real sockets, and what its clients need to ask them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import httpx
from fastapi import FastAPI

from edge.http.app import make_app
from edge.http.settings import HttpSettings
from edge.openinference.face import FaceSettings, NodeFace
from edge.openinference.rest import add_open_inference as add_rest
from protos.inference import open_inference_pb2 as pb
from runtime.http_server import HttpServer
from tests.fakes.classifier import CLASSIFIER, FakeClassifier
from tests.fakes.inference import FakeInference
from wire.channel import bind, open_server
from wire.grpc_server import HealthReporter, add_inference
from wire.messages import Tier
from wire.openinference.messages import SERVICE_NAME
from wire.openinference.server import add_open_inference

HELLO = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["hi"]}
WORDS = "one two three"


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
