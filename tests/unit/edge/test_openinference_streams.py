"""ModelStreamInfer over real sockets and fake tiers."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from protos.inference import open_inference_pb2 as pb
from tests.fakes.classifier import FakeClassifier
from tests.fakes.inference import FakeInference
from tests.fakes.open_inference import asking, labelling, output, speaking
from wire.openinference.messages import SERVICE_NAME


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


async def streamed(target: str, request: pb.ModelInferRequest) -> list[pb.ModelInferResponse]:
    """The responses to one request, up to the one that says it is the last."""
    async with grpc.aio.insecure_channel(target) as channel:
        stream = channel.stream_stream(
            f"/{SERVICE_NAME}/ModelStreamInfer",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )()
        await stream.write(request)
        pieces: list[pb.ModelInferResponse] = []
        while not pieces or not pieces[-1].parameters["triton_final_response"].bool_param:
            answer = await stream.read()
            assert not answer.error_message
            pieces.append(answer.infer_response)
        await stream.done_writing()
        assert await stream.read() == grpc.aio.EOF
        return pieces


async def test_a_stream_keeps_to_the_outputs_that_were_named() -> None:
    request = asking("hi")
    request.outputs.add(name="completion_tokens")
    async with speaking(FakeInference()) as target:
        (only,) = await streamed(target, request)
        request.outputs.add(name="text")
        *pieces, last = await streamed(target, request)
    assert [entry.name for entry in only.outputs] == ["completion_tokens"]
    assert len(pieces) == 3
    assert [entry.name for entry in last.outputs] == ["completion_tokens", "text"]


@pytest.mark.parametrize("empty_final", [True, False, None])
async def test_a_label_is_a_stream_of_one_piece_which_is_the_last(empty_final: bool | None) -> None:
    flag = {} if empty_final is None else {"triton_enable_empty_final_response": empty_final}
    async with speaking(labelling(), FakeClassifier()) as target:
        (piece,) = await streamed(target, asking("hi", model="sizes", **flag))
    assert output(piece, "label").contents.bytes_contents[0] == b"short"
    assert piece.parameters["weir_tier"].string_param == "edge"
    assert "weir_edge_tokens_spent" not in piece.parameters, "labels cost no tokens"
