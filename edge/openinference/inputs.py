"""The input tensors of a request, by what a task takes. Whatever does not fit is refused by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from edge.openinference import token_rows
from edge.openinference.parameters import refuse_all
from wire.errors import InvalidRequest, NotSupported, TooLarge
from wire.openinference.messages import InferRequest, RequestedOutput
from wire.openinference.tensors import Tensor


def named(request: InferRequest, known: Collection[str]) -> dict[str, Tensor]:
    """The inputs by name. Raises InvalidRequest, NotSupported."""
    found: dict[str, Tensor] = {}
    for tensor, parameters in zip(request.inputs, request.input_parameters, strict=True):
        if tensor.name not in known:
            raise _unknown(tensor.name, known)
        if tensor.name in found:
            raise InvalidRequest(f"input {tensor.name} is there twice")
        refuse_all(parameters, f"input {tensor.name}")
        found[tensor.name] = tensor
    return found


def texts(given: Mapping[str, Tensor], max_batch: int) -> dict[str, tuple[str, ...]]:
    """The text of every input, all of one length. Raises InvalidRequest, TooLarge."""
    found = {name: _texts(tensor, max_batch) for name, tensor in given.items()}
    if len({len(values) for values in found.values()}) > 1:
        sizes = ", ".join(f"{name} has {len(values)}" for name, values in found.items())
        raise InvalidRequest(f"the inputs must have as many elements as each other: {sizes}")
    return found


def _unknown(name: str, known: Collection[str]) -> InvalidRequest | NotSupported:
    if name in token_rows.NAMES:
        return NotSupported(f"input {name}: this model does not take it; it takes {', '.join(known)}")
    return InvalidRequest(f"input {name!r:.80} is not one of this model's: {', '.join(known)}")


def _texts(tensor: Tensor, max_batch: int) -> tuple[str, ...]:
    name, shape = tensor.name, tensor.shape
    if tensor.datatype != "BYTES":
        raise InvalidRequest(f"input {name} is {tensor.datatype}; it must be BYTES")
    if len(shape) not in (1, 2) or shape[0] < 1 or (len(shape) == 2 and shape[1] != 1):
        raise InvalidRequest(f"input {name} has the shape {list(shape)}; give [n] or [n, 1] with n from 1")
    if shape[0] > max_batch:
        raise TooLarge(f"input {name} has {shape[0]} elements; at most {max_batch} in one request")
    values = []
    for index, value in enumerate(tensor.values):
        try:
            values.append(value.decode() if isinstance(value, bytes) else str(value))
        except UnicodeDecodeError:
            raise InvalidRequest(f"input {name}[{index}] is not UTF-8") from None
    return tuple(values)


def wanted(
    outputs: tuple[RequestedOutput, ...], there: Collection[str], usual: Collection[str] = ()
) -> tuple[str, ...]:
    """The names of the outputs asked for; none named: the usual ones, or all. Raises InvalidRequest."""
    for output in outputs:
        if output.name not in there:
            raise InvalidRequest(f"output {output.name!r:.80} is not one of this model's: {', '.join(there)}")
        refuse_all(output.parameters, f"output {output.name}")
    if len({output.name for output in outputs}) < len(outputs):
        raise InvalidRequest("an output is asked for twice")
    return tuple(output.name for output in outputs) or tuple(usual or there)
