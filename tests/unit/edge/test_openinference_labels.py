"""Classifiers by the Open Inference Protocol, over real sockets and fake tiers."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from protos.inference import open_inference_pb2 as pb
from tests.fakes.classifier import LABELS, FakeClassifier
from tests.fakes.open_inference import asking, labelling, method, output, speaking
from wire.errors import Overloaded


async def test_a_fault_of_one_element_ends_the_others() -> None:
    classifier = FakeClassifier(fail_on="b", fail=Overloaded("the queue is full"), step_s=0.05)
    async with speaking(labelling(), classifier) as target, grpc.aio.insecure_channel(target) as channel:
        infer = method(channel, "ModelInfer", pb.ModelInferResponse)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await infer(asking("a", "b", *("c",) * 38, model="sizes"))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert classifier.running == 0
        assert classifier.most_running == 40


async def test_classes_scores_and_logits_in_the_order_of_the_classes() -> None:
    classifier = FakeClassifier()
    request = asking("hello you", "hi", model="sizes", priority=2)
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
    assert classifier.requests[0].context.priority == 7  # the second highest, as Triton's 2
    assert list(output(logits, "logits").contents.fp32_contents) == [0, 2, 0, 2, 0, 0]
    assert {entry.name: list(entry.shape) for entry in told.outputs}["scores"] == [-1, 3]


async def test_several_labels_may_hold() -> None:
    classifier = FakeClassifier(multi_label=True)
    async with speaking(labelling(), classifier) as target, grpc.aio.insecure_channel(target) as channel:
        answer = await method(channel, "ModelInfer", pb.ModelInferResponse)(asking("hi", model="sizes"))
    assert list(output(answer, "holds").contents.bool_contents) == [True, True, False]
