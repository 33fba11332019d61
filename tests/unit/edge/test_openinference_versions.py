"""The version of a response is the release that answered, though another was served when it was asked."""

from __future__ import annotations

from dataclasses import replace

import grpc
import grpc.aio
import pytest

from edge.openinference.versions import answered, names
from protos.inference import open_inference_pb2 as pb
from tests.fakes.classifier import CLASSIFIER, FakeClassifier
from tests.fakes.inference import FakeInference
from tests.fakes.node import soon
from tests.fakes.open_inference import asking, face, labelling, method, rest, speaking
from wire.errors import Conflict, NotFound
from wire.openinference.messages import InferRequest
from wire.openinference.tensors import Tensor

OLD, NEW = CLASSIFIER.release, "sizes@1.3.0+def"
REBUILT = "sizes@1.2.0+def"
MODEL = FakeInference().model


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def ids(version: str = "", rows: int = 2) -> InferRequest:
    tensor = Tensor("input_ids", "INT64", (rows, 2), (5, 6) * rows)
    return InferRequest("sizes", version, inputs=(tensor,), input_parameters=({},))


def texts(version: str = "", model: str = "sizes", count: int = 2) -> InferRequest:
    tensor = Tensor("text", "BYTES", (count,), (b"hi",) * count)
    return InferRequest(model, version, inputs=(tensor,), input_parameters=({},))


@pytest.mark.parametrize(
    ("asked", "releases", "told"),
    [
        ("", [OLD, OLD], "1.2.0+abc"),
        ("1.2.0", [OLD], "1.2.0"),
        (OLD, [OLD], OLD),
        ("1.2.0", [NEW, NEW], "1.3.0+def"),
        ("1.2.0+abc", [REBUILT], "1.2.0+def"),
        ("", [OLD, NEW], ""),
        ("1.2.0", [OLD, NEW], ""),
        ("1.2.0", ["large@1.2.0+abc"], "large@1.2.0+abc"),  # another model's version 1.2.0
        ("", ["gpt"], "gpt"),
        ("1.2.0", [""], ""),
    ],
)
def test_the_version_of_answers(asked: str, releases: list[str], told: str) -> None:
    assert answered(asked, CLASSIFIER, releases) == told


def test_a_model_without_a_release_is_version_1() -> None:
    assert names("") == ("1",)
    assert answered("1", replace(CLASSIFIER, release=""), [""]) == "1"


@pytest.mark.parametrize("version", ["1.2.0", "1.2.0+abc", OLD])
@pytest.mark.parametrize("releases", [(NEW,), (OLD, NEW), ("",), (OLD, "")])
async def test_ids_of_a_named_version_are_refused_when_others_labelled_them(
    version: str, releases: tuple[str, ...]
) -> None:
    node = face(labelling(), FakeClassifier(releases=releases))
    with pytest.raises(Conflict, match="meanwhile; token ids belong to a release's tokenizer") as caught:
        await node.infer(ids(version), soon())
    assert (NEW in caught.value.message) == (NEW in releases)


async def test_a_rebuilt_release_is_another_where_its_digest_was_named() -> None:
    node = face(labelling(), FakeClassifier(releases=(REBUILT,)))
    with pytest.raises(Conflict, match=r"changed to sizes@1\.2\.0\+def meanwhile"):
        await node.infer(ids("1.2.0+abc"), soon())


async def test_ids_without_a_version_say_which_release_took_them_and_two_are_refused() -> None:
    assert (await face(labelling(), FakeClassifier()).infer(ids("1.2.0"), soon())).version == "1.2.0"
    assert (await face(labelling(), FakeClassifier(releases=(NEW,))).infer(ids(), soon())).version == "1.3.0+def"
    with pytest.raises(Conflict, match=r"changed to sizes@1\.3\.0\+def"):
        await face(labelling(), FakeClassifier(releases=(OLD, NEW))).infer(ids(), soon())


async def test_labels_of_texts_say_which_release_gave_them() -> None:
    for version in ("", "1.2.0"):
        node = face(labelling(), FakeClassifier(releases=(NEW,)))
        assert (await node.infer(texts(version), soon())).version == "1.3.0+def"
        changing = await face(labelling(), FakeClassifier(releases=(OLD, NEW))).infer(texts(version), soon())
        assert (changing.version, "weir_release" in changing.parameters) == ("", False)
        found = {output.name: output.values for output in changing.outputs}
        assert found["release"] == (OLD.encode(), NEW.encode())
    with pytest.raises(NotFound):
        await face(labelling(), FakeClassifier()).infer(texts("1.3.0"), soon())


@pytest.mark.parametrize(
    ("releases", "told"),
    [((MODEL.release,), "1.0.0"), (("fake@1.1.0+1",), "1.1.0+1"), (("large@1.0.0+0",), "large@1.0.0+0"), (("",), "")],
)
async def test_texts_that_are_written_say_by_which_release(releases: tuple[str, ...], told: str) -> None:
    service = FakeInference(releases=releases)
    asked = texts("1.0.0", "fake")
    assert (await face(service).infer(asked, soon())).version == told
    streamed = [piece async for piece in face(service).stream(texts("1.0.0", "fake", 1), soon())]
    assert [piece.version for piece in streamed] == [told] * 4
    mixed = FakeInference(releases=(MODEL.release, "fake@1.1.0+1"))
    assert (await face(mixed).infer(asked, soon())).version == ""


async def test_both_protocols_say_that_the_weights_changed() -> None:
    body = {"inputs": [{"name": "input_ids", "datatype": "INT64", "shape": [1, 2], "data": [5, 6]}]}
    async with rest(labelling(), FakeClassifier(releases=(NEW,))) as client:
        refused = await client.post("/v2/models/sizes/versions/1.2.0/infer", json=body)
        taken = await client.post("/v2/models/sizes/infer", json=body)
    assert (refused.status_code, NEW in refused.json()["error"]) == (409, True)
    assert (taken.status_code, taken.json()["model_version"]) == (200, "1.3.0+def")
    request = asking(model="sizes")
    del request.inputs[:]
    request.model_version = "1.2.0"
    request.inputs.add(name="input_ids", datatype="INT64", shape=[1, 2]).contents.int64_contents.extend((5, 6))
    service = speaking(labelling(), FakeClassifier(releases=(NEW,)))
    async with service as target, grpc.aio.insecure_channel(target) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(channel, "ModelInfer", pb.ModelInferResponse)(request)
    assert caught.value.code() is grpc.StatusCode.ABORTED
