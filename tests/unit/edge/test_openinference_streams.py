"""ModelStreamInfer over real sockets and fake tiers."""

from __future__ import annotations

import grpc
import grpc.aio

from protos.inference import open_inference_pb2 as pb
from tests.fakes.inference import FakeInference
from tests.fakes.open_inference import asking, output, speaking
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
