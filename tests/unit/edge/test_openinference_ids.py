"""Raw tensors of a classifier by the Open Inference Protocol: both protocols, every form, over fake tiers."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import pytest

from protos.inference import open_inference_pb2 as pb
from tests.fakes.classifier import CLASSIFIER, FakeClassifier
from tests.fakes.inference import FakeInference
from tests.fakes.open_inference import asking, labelling, method, output, rest, speaking
from wire.errors import ContextTooLong
from wire.messages import Tier, TierConstraint

IDS = [[5, 6, 7, 8, 9], [8, 9, 0, 0, 0]]
MASK = [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]
TYPES = [[0, 0, 0, 1, 1], [0, 1, 0, 0, 0]]
TENSORS = {"input_ids": IDS, "attention_mask": MASK, "token_type_ids": TYPES}
ROWS = [((5, 6, 7, 8, 9), (0, 0, 0, 1, 1)), ((8, 9), (0, 1))]
URL = "/v2/models/sizes/infer"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def flat(rows: list[list[int]]) -> list[int]:
    return [value for row in rows for value in row]


def raw_tensors(raw: bool, **parameters: Any) -> pb.ModelInferRequest:
    request = asking(model="sizes", **parameters)
    del request.inputs[:]
    for name, rows in TENSORS.items():
        entry = request.inputs.add(name=name, datatype="INT64", shape=[len(rows), len(rows[0])])
        if raw:
            request.raw_input_contents.append(struct.pack("<10q", *flat(rows)))
        else:
            entry.contents.int64_contents.extend(flat(rows))
    return request


def in_json(**tensors: Any) -> list[dict[str, Any]]:
    return [
        {"name": name, "datatype": "INT64", "shape": [len(rows), len(rows[0])], "data": rows}
        for name, rows in tensors.items()
    ]


def asked(classifier: FakeClassifier) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(request.input_ids, request.token_type_ids) for request in classifier.requests]


@pytest.mark.parametrize("raw", [False, True])
async def test_grpc_takes_rows_in_both_contents_each_as_a_request_of_its_own(raw: bool) -> None:
    classifier = FakeClassifier()
    request = raw_tensors(raw, constraint="edge_only", idempotency_key="k", site="s")
    request.outputs.add(name="label")
    async with speaking(labelling(), classifier) as target, grpc.aio.insecure_channel(target) as channel:
        answer = await method(channel, "ModelInfer", pb.ModelInferResponse)(request)
    assert asked(classifier) == ROWS
    first, second = classifier.requests
    assert (first.text, first.text_pair, first.model) == ("", "", "sizes")
    assert (first.constraints.tier, first.context.site) == (TierConstraint.EDGE_ONLY, "s")
    assert (first.idempotency_key, second.idempotency_key) == ("k/0", "k/1")
    if raw:
        assert answer.raw_output_contents[0] == b"\6\0\0\0medium\5\0\0\0short"
    else:
        assert [bytes(v) for v in output(answer, "label").contents.bytes_contents] == [b"medium", b"short"]


async def test_rest_takes_rows_nested_flat_and_in_binary() -> None:
    classifier = FakeClassifier()
    nested = in_json(**TENSORS)
    straight = [{**entry, "data": flat(entry["data"])} for entry in nested]
    contents = b"".join(struct.pack("<10q", *flat(rows)) for rows in TENSORS.values())
    sized = [{**entry, "parameters": {"binary_data_size": 80}} for entry in nested]
    head = json.dumps({"inputs": [{k: v for k, v in entry.items() if k != "data"} for entry in sized]}).encode()
    async with rest(labelling(), classifier) as client:
        for inputs in (nested, straight):
            answer = await client.post(URL, json={"inputs": inputs})
            assert {entry["name"]: entry["data"] for entry in answer.json()["outputs"]}["label"] == ["medium", "short"]
        length = {"inference-header-content-length": str(len(head))}
        assert (await client.post(URL, content=head + contents, headers=length)).status_code == 200
        alone = await client.post(URL, json={"inputs": in_json(input_ids=IDS)})
    assert alone.status_code == 200
    assert asked(classifier) == [*ROWS * 3, *((tuple(row), ()) for row in IDS)]


async def test_the_metadata_lists_what_the_model_takes() -> None:
    async def told(*capabilities: str) -> dict[str, tuple[str, list[int]]]:
        service = FakeInference(Tier.EDGE, model=replace(CLASSIFIER, capabilities=("classify", *capabilities)))
        async with rest(service, FakeClassifier()) as client:
            entries = (await client.get("/v2/models/sizes")).json()["inputs"]
        return {entry["name"]: (entry["datatype"], entry["shape"]) for entry in entries}

    texts = {"text": ("BYTES", [-1]), "text_pair": ("BYTES", [-1])}
    ids = {"input_ids": ("INT64", [-1, -1]), "attention_mask": ("INT64", [-1, -1])}
    assert await told() == texts
    assert await told("input_ids") == {**texts, **ids}
    assert await told("input_ids", "token_type_ids") == {**texts, **ids, "token_type_ids": ("INT64", [-1, -1])}
    async with speaking(labelling(), FakeClassifier()) as target, grpc.aio.insecure_channel(target) as channel:
        metadata = method(channel, "ModelMetadata", pb.ModelMetadataResponse)
        found = await metadata(pb.ModelMetadataRequest(name="sizes"))
    assert [entry.name for entry in found.inputs] == [
        "text",
        "text_pair",
        "input_ids",
        "attention_mask",
        "token_type_ids",
    ]


HELLO = {"name": "text", "datatype": "BYTES", "shape": [2], "data": ["hi", "you"]}
ROW = in_json(input_ids=[[5, 6]])[0]


@pytest.mark.parametrize(
    ("inputs", "status", "words"),
    [
        ([HELLO, *in_json(input_ids=IDS)], 400, "text, input_ids: give texts or input_ids, not both"),
        ([HELLO, *in_json(attention_mask=MASK)], 400, "not both"),
        (in_json(attention_mask=MASK), 400, "input_ids, which is missing"),
        ([{**ROW, "data": [5]}], 400, "input_ids"),
        ([{**ROW, "data": [5, 6, 7]}], 400, "'input_ids' has 3 elements"),
        ([{**ROW, "shape": [2, 2], "data": [[5, 6, 7], [8]]}], 400, "'input_ids' is nested otherwise than its shape"),
        ([{**ROW, "shape": [2, 2], "data": [[5, 6], [8]]}], 400, "'input_ids' is nested otherwise than its shape"),
        ([{**ROW, "data": [[5, 6.5]]}], 400, "'input_ids' is INT64 and holds 6.5"),
        ([{**ROW, "data": [[5, True]]}], 400, "'input_ids' is INT64 and holds True"),
        ([{**ROW, "datatype": "INT32"}], 400, "input_ids is INT32"),
        ([{**ROW, "shape": [1, 1 << 40]}], 413, "'input_ids' has 1099511627776 elements"),
        ([{**ROW, "shape": [65, 1], "data": [5] * 65}], 413, "input_ids has 65 rows; at most 64"),
        ([ROW, ROW], 400, "input_ids is there twice"),
        ([{**ROW, "parameters": {"pad": 1}}], 400, "input input_ids: parameter 'pad'"),
        ([{**ROW, "name": "position_ids"}], 400, "'position_ids' is not one of this model's"),
    ],
)
async def test_what_does_not_fit_is_refused_by_name(inputs: Any, status: int, words: str) -> None:
    classifier = FakeClassifier()
    async with rest(labelling(), classifier) as client:
        answer = await client.post(URL, json={"inputs": inputs})
    assert (answer.status_code, classifier.requests) == (status, [])
    assert words in answer.json()["error"]


async def test_a_model_that_takes_no_ids_or_types_says_so_by_name() -> None:
    service = FakeInference(Tier.EDGE, model=replace(CLASSIFIER, capabilities=("classify", "input_ids")))
    async with rest(service, FakeClassifier()) as client:
        types = await client.post(URL, json={"inputs": in_json(**TENSORS)})
    assert (types.status_code, "token_type_ids: this model does not take it" in types.text) == (501, True)
    async with rest(FakeInference(), None) as client:
        ids = await client.post("/v2/models/fake/infer", json={"inputs": in_json(input_ids=IDS)})
    assert (ids.status_code, "it takes text, prompt" in ids.text) == (501, True)


async def test_a_fault_says_which_element_has_it() -> None:
    classifier = FakeClassifier(fail_on="long", fail=ContextTooLong("the text has 600 tokens; this model takes 512"))
    async with rest(labelling(), classifier) as client:
        answer = await client.post(URL, json={"inputs": [{**HELLO, "data": ["hi", "long"]}]})
        alone = await client.post(URL, json={"inputs": [{**HELLO, "shape": [1], "data": ["long"]}]})
    assert (answer.status_code, answer.json()["error"][:29]) == (400, "element 1: the text has 600 t")
    assert alone.json()["error"].startswith("the text has 600")
