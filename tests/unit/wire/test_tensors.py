"""What a tensor may hold is told from its shape, before any of its elements is read."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from edge.openinference.rest_body import request_in
from protos.inference import open_inference_pb2 as pb
from wire.errors import TooLarge, WeirError
from wire.openinference.convert import infer_of
from wire.openinference.tensors import MAX_ELEMENTS, MAX_TEXTS, from_raw

MANY = 1 << 19
TEXT = b"\2\0\0\0ab"


def of(datatype: str, count: int, raw: bytes, tensors: int = 1) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="m")
    for index in range(tensors):
        request.inputs.add(name=f"t{index}", datatype=datatype, shape=[count])
        request.raw_input_contents.append(raw)
    return request


def typed(count: int) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="m")
    request.inputs.add(name="t", datatype="BYTES", shape=[count]).contents.bytes_contents.extend([b"ab"] * count)
    return request


def rest(datatype: str, count: int, raw: bytes, tensors: int = 1) -> Any:
    size = {"binary_data_size": len(raw)}
    inputs = [
        {"name": f"t{index}", "datatype": datatype, "shape": [count], "parameters": size} for index in range(tensors)
    ]
    return lambda: request_in("m", "", {"inputs": inputs}, raw * tensors)


TOO_MANY: list[tuple[str, Any]] = [
    ("raw texts", lambda: from_raw("t", "BYTES", (MANY,), TEXT * MANY)),
    ("raw numbers", lambda: from_raw("t", "INT8", (MANY,), b"\0" * MANY)),
    ("texts by gRPC", lambda: infer_of(of("BYTES", MANY, TEXT * MANY))),
    ("typed texts by gRPC", lambda: infer_of(typed(MANY))),
    ("several of numbers", lambda: infer_of(of("INT8", MAX_ELEMENTS, b"\0" * MAX_ELEMENTS, 4))),
    ("several of texts", lambda: infer_of(of("BYTES", MAX_TEXTS, TEXT * MAX_TEXTS, 40))),
    ("many empty tensors", lambda: infer_of(of("INT8", 0, b"", 100_000))),
    ("texts by REST", rest("BYTES", MANY, TEXT * MANY)),
    ("several by REST", rest("BYTES", MAX_TEXTS, TEXT * MAX_TEXTS, 40)),
]


@pytest.mark.parametrize(("name", "read"), TOO_MANY)
def test_too_many_elements_are_refused_unread(name: str, read: Any) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            read()
        # Making the request takes what it holds; its elements would take fifty bytes and more each.
        assert tracemalloc.get_traced_memory()[1] < 24 * MANY, name
    finally:
        tracemalloc.stop()


def test_as_many_as_may_be_are_read() -> None:
    assert len(from_raw("t", "BYTES", (MAX_TEXTS,), TEXT * MAX_TEXTS)) == MAX_TEXTS
    assert len(from_raw("t", "INT64", (MAX_ELEMENTS,), b"\0" * 8 * MAX_ELEMENTS)) == MAX_ELEMENTS


def test_many_parameters_are_refused_by_their_number() -> None:
    request = pb.ModelInferRequest(model_name="m")
    for index in range(1000):
        request.parameters[f"p{index}"].int64_param = index
    with pytest.raises(WeirError, match="1000 parameters"):
        infer_of(request)
