"""An edge node over gRPC, as processes: streams, bad input, health, reflection, what is named and not served."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.integration.cloud_process import soon
from tests.integration.edge_process import EdgeProcess, calibrated_release, edge_process, until
from tests.unit.wire.test_reflection import ask_by_reflection
from wire.errors import InvalidRequest, NotFound, TooLarge, WeirError
from wire.grpc_client import InferenceClient
from wire.messages import Constraints, Delta, Final, GenerateRequest, Message, ResponseFormat, Sampling
from wire.scoring import ScoreRequest

SURE = 5.0
SERVICES = ("weir.v1.Inference", "inference.GRPCInferenceService")


@pytest.fixture(scope="module")
def node(tiny_release: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EdgeProcess]:
    folder = tmp_path_factory.mktemp("releases") / "sure"
    calibrated_release(tiny_release, folder, "1.0.0", SURE)
    with edge_process(folder) as running:
        yield running


async def test_grpc_streams_for_real(node: EdgeProcess) -> None:
    client = InferenceClient(node.grpc)
    request = GenerateRequest(
        messages=(Message("user", "Tell me more."),),
        sampling=Sampling(max_tokens=300, temperature=1.0, seed=3),
        constraints=Constraints(commit_rule="prefix:8"),
    )
    began, arrivals, final = time.monotonic(), [], None
    async for event in client.generate(request, soon()):
        if isinstance(event, Delta) and event.text:
            arrivals.append(time.monotonic() - began)
        elif isinstance(event, Final):
            final = event
    await client.close()
    assert final is not None
    assert final.usage.completion_tokens >= 16
    assert arrivals[0] < arrivals[-1] / 2


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"messages": ()}, InvalidRequest),
        ({"model": "other"}, NotFound),
        ({"sampling": Sampling(max_tokens=-1)}, InvalidRequest),
        ({"sampling": Sampling(temperature=float("nan"))}, InvalidRequest),
        ({"messages": (Message("user", "where is it? " * 400),)}, InvalidRequest),
        ({"messages": (Message("user", "x" * 10_000_000),)}, TooLarge),
        ({"messages": (Message("user", "x" * 2_000_000),)}, TooLarge),
    ],
)
async def test_bad_input_over_grpc(node: EdgeProcess, change: dict[str, Any], kind: type[WeirError]) -> None:
    client = InferenceClient(node.grpc)
    fields: dict[str, Any] = {"messages": (Message("user", "hi"),), **change}
    with pytest.raises(kind):
        async for _ in client.generate(GenerateRequest(**fields), soon()):
            pass
    await client.close()


def test_a_client_without_the_protos_asks_by_reflection(node: EdgeProcess) -> None:
    events = ask_by_reflection(node.grpc, "tiny", "Where is my parcel?")
    kinds = [event.WhichOneof("event") for event in events]  # type: ignore[attr-defined]
    assert (kinds[0], kinds[-1]) == ("committed", "final")
    assert set(kinds[1:-1]) == {"delta"}
    assert events[-1].final.release.startswith("tiny@")  # type: ignore[attr-defined]


def test_health_says_that_the_node_and_each_service_serve(node: EdgeProcess) -> None:
    with grpc.insecure_channel(node.grpc) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        def state(service: str) -> str:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
            return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)

        # It is told a moment after /readyz says so.
        until(lambda: [state(name) for name in ("", *SERVICES)] == ["SERVING"] * 3, 5, node.log.read_text)
        with pytest.raises(grpc.RpcError) as caught:
            state("weir.v1.Nothing")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_reflection_lists_both_services_and_knows_their_methods(node: EdgeProcess) -> None:
    with grpc.insecure_channel(node.grpc) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert {*SERVICES, "grpc.health.v1.Health"} <= set(database.get_services())
        pool = DescriptorPool(database)
        methods = [{method.name for method in pool.FindServiceByName(name).methods} for name in SERVICES]
    assert methods[0] == {"Generate", "Classify", "Score", "Describe"}
    assert {"ModelInfer", "ModelStreamInfer", "ModelMetadata", "ModelReady", "ServerReady"} <= methods[1]


async def test_bytes_that_are_no_text_are_the_callers_fault(node: EdgeProcess) -> None:
    async with grpc.aio.insecure_channel(node.grpc) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="UTF-8") as caught:
            async for _ in channel.unary_stream("/weir.v1.Inference/Generate")(b"\x1a\x02\xff\xfe", timeout=5):
                pass
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("method", ["Fleet/Enroll", "Fleet/Explain"])
async def test_what_is_named_and_not_served_says_so(node: EdgeProcess, method: str) -> None:
    async with grpc.aio.insecure_channel(node.grpc) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match=method.partition("/")[2]) as caught:
            await channel.unary_unary(f"/weir.v1.{method}")(b"", timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    client = InferenceClient(node.grpc)
    (model,) = (await client.describe(soon())).models
    await client.close()
    assert "classify" not in {*model.capabilities, *model.tasks}


async def test_a_node_scores_continuations_by_its_own_model(node: EdgeProcess) -> None:
    client = InferenceClient(node.grpc)
    asked = ScoreRequest("tiny", (Message("user", "Where is my parcel?"),), continuations=("in the city", "no"))
    answer = await client.score(asked, soon())
    again = await client.score(replace(asked, continuations=("no",)), soon())
    with pytest.raises(InvalidRequest, match="no continuation"):
        await client.score(replace(asked, continuations=()), soon())
    await client.close()
    assert [len(one.token_ids) > 0 and max(one.logprobs) < 0 for one in answer.scored] == [True, True]
    assert again.scored[0].token_ids == answer.scored[1].token_ids
    assert again.scored[0].logprobs == pytest.approx(answer.scored[1].logprobs, abs=0.2)
    assert answer.release.startswith("tiny@")


async def test_the_likeliest_of_choices_is_an_answer_without_a_confidence_fitted_on_text(node: EdgeProcess) -> None:
    client = InferenceClient(node.grpc)
    asked = GenerateRequest(
        messages=(Message("user", "Where is my parcel?"),),
        response_format=ResponseFormat("choice", choices=("in the city", "no", "nobody knows")),
        return_signals=True,
    )
    events = [event async for event in client.generate(asked, soon())]
    await client.close()
    final = events[-1]
    assert isinstance(final, Final)
    assert "".join(event.text for event in events if isinstance(event, Delta)) in asked.response_format.choices  # type: ignore[union-attr]
    assert final.confidence is None
    assert final.signals is not None
    assert 0 < math.exp(final.signals.sum_logprob) <= 1
