"""The REST form of the protocol: JSON, with tensors in it or in binary behind it. Pure: bytes in, bytes out.

With `inference-header-content-length: N` the body is N bytes of JSON and then the raw contents of those
tensors whose `binary_data_size` says so, in their order. An answer is binary in the same manner for those
outputs that were asked for so (`binary_data`, or `binary_data_output` for all).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from wire.errors import InvalidRequest
from wire.openinference.messages import InferRequest, InferResponse, Parameter, Parameters, RequestedOutput
from wire.openinference.tensors import Element, Tensor, demand_datatype, demand_few, demand_fit, from_raw, to_raw

Json = dict[str, Any]
_REQUEST = ("id", "parameters", "inputs", "outputs")
_INPUT = ("name", "datatype", "shape", "parameters", "data")
_OUTPUT = ("name", "parameters")
_SIZE, _BINARY, _ALL_BINARY = "binary_data_size", "binary_data", "binary_data_output"


def request_in(model: str, version: str, document: Any, binary: bytes) -> tuple[InferRequest, frozenset[str] | None]:
    """A request, and the names of the outputs wanted in binary (None: all). Raises InvalidRequest or TooLarge."""
    given = _object(document, "the body", _REQUEST)
    parameters = _parameters(given.get("parameters"), "the request")
    all_binary = _flag(parameters.pop(_ALL_BINARY, False), _ALL_BINARY)
    inputs, told = _inputs(_list(given, "inputs"), binary)
    outputs, in_binary = [], set()
    for entry in _list(given, "outputs"):
        output = _object(entry, "an output", _OUTPUT)
        name = _text(output, "name", "an output")
        own = _parameters(output.get("parameters"), f"output {name!r:.80}")
        if _flag(own.pop(_BINARY, all_binary), _BINARY):
            in_binary.add(name)
        outputs.append(RequestedOutput(name, own))
    request = InferRequest(
        model, version, _text(given, "id", "the request", ""), parameters, inputs, told, tuple(outputs), bool(binary)
    )
    return request, None if all_binary and not outputs else frozenset(in_binary)


def _inputs(entries: Sequence[Any], binary: bytes) -> tuple[tuple[Tensor, ...], tuple[Parameters, ...]]:
    tensors, told, position = [], [], 0
    heads = [_head(entry) for entry in entries]
    demand_few((name, datatype, shape) for name, datatype, shape, _ in heads)
    for name, datatype, shape, given in heads:
        parameters = _parameters(given.get("parameters"), f"input {name!r:.80}")
        size = parameters.pop(_SIZE, None)
        if size is None:
            values = _values(given.get("data"), name, datatype, shape)
        else:
            if "data" in given:
                raise InvalidRequest(f"input {name!r:.80} has both data and {_SIZE}; send one of them")
            if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(binary) - position:
                raise InvalidRequest(
                    f"input {name!r:.80}: {_SIZE} is {size!r:.80}; {len(binary) - position} bytes are left"
                )
            values = from_raw(name, datatype, shape, binary[position : position + size])
            position += size
        tensors.append(Tensor(name, datatype, shape, values))
        told.append(parameters)
    if position != len(binary):
        raise InvalidRequest(f"{len(binary) - position} bytes behind the JSON belong to no input; check {_SIZE}")
    return tuple(tensors), tuple(told)


def _head(entry: Any) -> tuple[str, str, tuple[int, ...], Json]:
    """An input's name, datatype and shape, and all of it."""
    given = _object(entry, "an input", _INPUT)
    name = _text(given, "name", "an input")
    return name, _text(given, "datatype", f"input {name!r:.80}"), _shape(given.get("shape"), name), given


def _values(data: Any, name: str, datatype: str, shape: tuple[int, ...]) -> tuple[Element, ...]:
    demand_datatype(name, datatype)
    if not isinstance(data, list):
        raise InvalidRequest(f"input {name!r:.80} has no data: a list is missing")
    nested = any(isinstance(value, list) for value in data)
    flat: list[Element] = []
    _flatten(data, name, datatype, flat, shape if nested else shape[:0])
    demand_fit(name, datatype, shape, len(flat))
    return tuple(flat)


def _flatten(data: list[Any], name: str, datatype: str, into: list[Element], shape: tuple[int, ...]) -> None:
    """Adds the elements of `data` to `into`, in order. Where it is nested it must be so as `shape` says.

    Rows of other lengths than the shape's could have as many elements together, each in a wrong place.
    """
    if shape and len(data) != shape[0]:
        raise InvalidRequest(f"input {name!r:.80} is nested otherwise than its shape: {len(data)} for {shape[0]}")
    for value in data:
        if isinstance(value, list) is not (len(shape) > 1):
            raise InvalidRequest(f"input {name!r:.80} is nested otherwise than its shape; send it so, or flat")
        if isinstance(value, list):
            _flatten(value, name, datatype, into, shape[1:])
        else:
            into.append(_element(value, name, datatype))


def _element(value: Any, name: str, datatype: str) -> Element:
    if datatype == "BYTES" and isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(f"input {name!r:.80} holds half a surrogate pair, which is not text") from None
    if datatype == "BOOL" and isinstance(value, bool):
        return value
    if datatype.startswith("FP") and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if "INT" in datatype and isinstance(value, int) and not isinstance(value, bool):
        return value
    raise InvalidRequest(f"input {name!r:.80} is {datatype} and holds {value!r:.80}")


def response_out(response: InferResponse, in_binary: frozenset[str] | None) -> tuple[bytes, bytes]:
    """The JSON part and the binary part behind it, empty where nothing is wanted so."""
    outputs, parts = [], []
    for tensor in response.outputs:
        entry: Json = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        if in_binary is None or tensor.name in in_binary:
            parts.append(to_raw(tensor))
            entry["parameters"] = {_SIZE: len(parts[-1])}
        else:
            entry["data"] = [_plain(value) for value in tensor.values]
        outputs.append(entry)
    document: Json = {"model_name": response.model, "model_version": response.version}
    if response.id:
        document["id"] = response.id
    if response.parameters:
        document["parameters"] = dict(response.parameters)
    document["outputs"] = outputs
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(), b"".join(parts)


def _plain(value: Element) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _object(value: Any, what: str, known: Sequence[str]) -> Json:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{what} must be a JSON object")
    for name in value:
        if name not in known:
            raise InvalidRequest(f"{what}: {name!r:.80} is not supported here; leave it out")
    return value


def _list(given: Json, name: str) -> list[Any]:
    value = given.get(name, [])
    if not isinstance(value, list):
        raise InvalidRequest(f"{name} must be a list")
    return value


def _text(given: Json, name: str, what: str, default: str | None = None) -> str:
    value = given.get(name, default)
    if not isinstance(value, str):
        raise InvalidRequest(f"{what}: {name} is missing or no text")
    return value


def _shape(value: Any, name: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(isinstance(size, int) and not isinstance(size, bool) for size in value):
        raise InvalidRequest(f"input {name!r:.80}: shape is missing or no list of whole numbers")
    return tuple(value)


def _parameters(value: Any, what: str) -> dict[str, Parameter]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{what}: parameters must be a JSON object")
    for name, entry in value.items():
        if not isinstance(entry, bool | int | float | str):
            raise InvalidRequest(f"{what}: parameter {name!r:.80} must be text, a number, true or false")
    return dict(value)


def _flag(value: Parameter, name: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} is {value!r:.80}; it must be true or false")
    return value
