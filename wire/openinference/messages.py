"""What travels in the Open Inference Protocol, and who answers it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from wire.openinference.tensors import Tensor
from wire.service import Call

SERVICE_NAME = "inference.GRPCInferenceService"

Parameter = bool | int | float | str
Parameters = Mapping[str, Parameter]


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output tensor that the caller wants."""

    name: str
    parameters: Parameters = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InferRequest:
    """One call: every element of the inputs is answered. No outputs named: all there are.

    `input_parameters` are those of each input, in order; `raw` says that the contents came raw.
    """

    model: str
    version: str = ""
    id: str = ""
    parameters: Parameters = field(default_factory=dict)
    inputs: tuple[Tensor, ...] = ()
    input_parameters: tuple[Parameters, ...] = ()
    outputs: tuple[RequestedOutput, ...] = ()
    raw: bool = False


@dataclass(frozen=True, slots=True)
class InferResponse:
    """The answer: the outputs, and what is to be said of all of them together; `version` is that of what answered."""

    model: str
    version: str = ""
    id: str = ""
    parameters: Parameters = field(default_factory=dict)
    outputs: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """A tensor as a model takes or gives it; a size of -1 may be any."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """A model, its versions and its tensors."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


@dataclass(frozen=True, slots=True)
class ServerMetadata:
    """Who answers, and which extensions it speaks."""

    name: str
    version: str
    extensions: tuple[str, ...]


class OpenInference(Protocol):
    """Answers the Open Inference Protocol. Every method raises WeirError."""

    async def server_ready(self, call: Call) -> bool:
        """Whether requests can be answered now."""
        ...

    async def server_metadata(self, call: Call) -> ServerMetadata: ...

    async def model_ready(self, name: str, version: str, call: Call) -> bool:
        """Whether that model can answer now. Raises NotFound."""
        ...

    async def model_metadata(self, name: str, version: str, call: Call) -> ModelMetadata:
        """Raises NotFound."""
        ...

    async def infer(self, request: InferRequest, call: Call) -> InferResponse:
        """Answers all elements, or raises."""
        ...

    def stream(self, request: InferRequest, call: Call) -> AsyncGenerator[InferResponse, None]:
        """Answers one element piece by piece; an async generator, cancelled by closing it."""
        ...
