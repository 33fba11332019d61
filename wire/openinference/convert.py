"""Between inference.* messages and wire.openinference.messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protos.inference import open_inference_pb2 as pb
from wire.convert import parse
from wire.errors import InvalidRequest, TooLarge
from wire.openinference.messages import (
    InferRequest,
    InferResponse,
    ModelMetadata,
    Parameter,
    Parameters,
    RequestedOutput,
    ServerMetadata,
    TensorMetadata,
)
from wire.openinference.tensors import Element, Tensor, demand_datatype, demand_few, demand_fit, from_raw, to_raw

MAX_TENSORS = 64
MAX_PARAMETERS = 256
_FIELDS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def infer_in(data: bytes) -> InferRequest:
    """Raises InvalidRequest, NotSupported or TooLarge."""
    return infer_of(parse(pb.ModelInferRequest, data))


def infer_of(message: pb.ModelInferRequest) -> InferRequest:
    """Likewise, of a message that was read already."""
    raw = message.raw_input_contents
    for what, entries in (("inputs", message.inputs), ("outputs", message.outputs)):
        if len(entries) > MAX_TENSORS:
            raise TooLarge(f"the request has {len(entries)} {what}; at most {MAX_TENSORS}")
    if raw and len(raw) != len(message.inputs):
        raise InvalidRequest(
            f"raw_input_contents has {len(raw)} entries for {len(message.inputs)} inputs; one for each"
        )
    demand_few((entry.name, entry.datatype, entry.shape) for entry in message.inputs)
    inputs = tuple(_input(entry, raw[index] if raw else None) for index, entry in enumerate(message.inputs))
    return InferRequest(
        model=message.model_name,
        version=message.model_version,
        id=message.id,
        parameters=_parameters_in(message.parameters),
        inputs=inputs,
        input_parameters=tuple(_parameters_in(entry.parameters) for entry in message.inputs),
        outputs=tuple(RequestedOutput(entry.name, _parameters_in(entry.parameters)) for entry in message.outputs),
        raw=bool(raw),
    )


def _input(entry: pb.ModelInferRequest.InferInputTensor, raw: bytes | None) -> Tensor:
    name, shape = entry.name, tuple(entry.shape)
    given = [field.name for field, _ in entry.contents.ListFields()]
    if raw is not None:
        if given:
            raise InvalidRequest(f"tensor {name!r:.80} has both contents and raw contents; send one of them")
        return Tensor(name, entry.datatype, shape, from_raw(name, entry.datatype, shape, raw))
    demand_datatype(name, entry.datatype)
    wanted = _FIELDS.get(entry.datatype, "raw_input_contents")
    if given and given != [wanted]:
        raise InvalidRequest(f"tensor {name!r:.80} is {entry.datatype} and fills {given[0]}; it belongs into {wanted}")
    values: Sequence[Element] = getattr(entry.contents, wanted) if given else ()
    demand_fit(name, entry.datatype, shape, len(values))
    return Tensor(name, entry.datatype, shape, tuple(values))


def _parameters_in(given: Mapping[str, pb.InferParameter]) -> dict[str, Parameter]:
    if len(given) > MAX_PARAMETERS:
        raise TooLarge(f"there are {len(given)} parameters in one place; at most {MAX_PARAMETERS}")
    found: dict[str, Parameter] = {}
    for name, value in given.items():
        choice = value.WhichOneof("parameter_choice")
        if choice is None:
            raise InvalidRequest(f"parameter {name!r:.80} has no value")
        found[name] = getattr(value, choice)
    return found


def infer_out(response: InferResponse, raw: bool) -> pb.ModelInferResponse:
    """`raw`: the outputs' contents as raw bytes, for a caller that sent raw ones."""
    message = pb.ModelInferResponse(model_name=response.model, model_version=response.version, id=response.id)
    _parameters_out(response.parameters, message.parameters)
    for tensor in response.outputs:
        entry = message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if raw:
            message.raw_output_contents.append(to_raw(tensor))
        else:
            getattr(entry.contents, _FIELDS[tensor.datatype]).extend(tensor.values)
    return message


def _parameters_out(given: Parameters, into: Mapping[str, pb.InferParameter]) -> None:
    for name, value in given.items():
        match value:
            case bool():
                into[name].bool_param = value
            case int():
                into[name].int64_param = value
            case float():
                into[name].double_param = value
            case str():
                into[name].string_param = value


def model_in(data: bytes) -> tuple[str, str]:
    """Name and version of a ModelReady or ModelMetadata request: both have the same fields."""
    message = parse(pb.ModelMetadataRequest, data)
    return message.name, message.version


def live_out() -> bytes:
    return pb.ServerLiveResponse(live=True).SerializeToString()


def server_ready_out(ready: bool) -> bytes:
    return pb.ServerReadyResponse(ready=ready).SerializeToString()


def model_ready_out(ready: bool) -> bytes:
    return pb.ModelReadyResponse(ready=ready).SerializeToString()


def server_metadata_out(server: ServerMetadata) -> bytes:
    message = pb.ServerMetadataResponse(name=server.name, version=server.version, extensions=server.extensions)
    return message.SerializeToString()


def model_metadata_out(model: ModelMetadata) -> bytes:
    message = pb.ModelMetadataResponse(name=model.name, versions=model.versions, platform=model.platform)
    message.inputs.extend(_tensor_out(entry) for entry in model.inputs)
    message.outputs.extend(_tensor_out(entry) for entry in model.outputs)
    return message.SerializeToString()


def _tensor_out(entry: TensorMetadata) -> pb.ModelMetadataResponse.TensorMetadata:
    return pb.ModelMetadataResponse.TensorMetadata(name=entry.name, datatype=entry.datatype, shape=entry.shape)


def piece_out(response: InferResponse, raw: bool) -> bytes:
    """One piece of a streamed answer."""
    return pb.ModelStreamInferResponse(infer_response=infer_out(response, raw)).SerializeToString()


def failed_out(message: str, request_id: str) -> bytes:
    """A streamed request that failed; the stream goes on."""
    failed = pb.ModelStreamInferResponse(error_message=message)
    failed.infer_response.id = request_id
    return failed.SerializeToString()
