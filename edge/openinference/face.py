"""Answers the Open Inference Protocol with what a node is: an InferenceService and, maybe, a Classifies.

Each element of a request becomes a request of its own through the node, so that each is routed, batched
and accounted for like any other. All are answered or the request fails, and then
those still running end at once. Satisfies wire.openinference.messages.OpenInference.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from edge.http.readiness import Readiness
from edge.openinference import classification, generation, provenance, versions
from edge.openinference.generation import Answer
from edge.openinference.inputs import wanted
from edge.openinference.parameters import Asked
from runtime.version import weir_version
from wire.classification import Classified, Classifies, ClassifyRequest
from wire.description import ModelInfo
from wire.errors import InvalidRequest, NotFound, NotSupported, TooLarge, WeirError
from wire.messages import Committed, Delta, Final, GenerateRequest
from wire.openinference.messages import (
    InferRequest,
    InferResponse,
    ModelMetadata,
    ServerMetadata,
    TensorMetadata,
)
from wire.openinference.tensors import Tensor
from wire.service import Call, InferenceService

T = TypeVar("T")
PLATFORM = "weir"
EXTENSIONS = ("binary_tensor_data", "parameters")
_LAST = "triton_final_response"


@dataclass(frozen=True, slots=True)
class FaceSettings:
    """Bounds of the face."""

    node: str = "edge"
    streaming_rule: str = "prefix:8"  # when a streamed answer is committed
    max_batch: int = 64  # elements of one request
    max_running: int = 8  # of them at a time that write text; labels are all asked for at once, to be batched


class NodeFace:
    """See wire.openinference.messages.OpenInference."""

    def __init__(
        self,
        service: InferenceService,
        settings: FaceSettings | None = None,
        classifies: Classifies | None = None,
        readiness: Readiness | None = None,
    ) -> None:
        """Without `readiness` a model is as ready as the service."""
        self._service, self._classifies, self._readiness = service, classifies, readiness
        self._settings = settings or FaceSettings()

    async def server_ready(self, call: Call) -> bool:
        return (await self._service.describe(call)).ready

    async def server_metadata(self, _call: Call) -> ServerMetadata:
        return ServerMetadata("weir", weir_version(), EXTENSIONS)

    async def model_ready(self, name: str, version: str, call: Call) -> bool:
        if self._readiness is None:
            await self._model(name, version, call)
            return (await self._service.describe(call)).ready
        ready = self._readiness.model_ready(name)
        if version:  # which nobody knows before its engine was there
            await self._model(name, version, call)
        return ready

    async def model_metadata(self, name: str, version: str, call: Call) -> ModelMetadata:
        model = await self._model(name, version, call)
        given, told = _tensors_of(model)
        return ModelMetadata(model.name, versions.names(model.release)[:1], PLATFORM, given, told)

    async def infer(self, request: InferRequest, call: Call) -> InferResponse:
        model = await self._model(request.model, request.version, call)
        if _labels(model):
            return await self._classify(request, model, call)
        names = wanted(request.outputs, [entry.name for entry in generation.OUTPUTS])
        asked, elements = generation.to_requests(request, model.name, uuid.uuid4().hex, self._settings.max_batch)
        call = _timed(call, asked)
        answers = await _all([self._whole(element, call) for element in elements], self._settings.max_running)
        return _response(request, model, generation.tensors(answers, names), [answer.final for answer in answers])

    async def stream(self, request: InferRequest, call: Call) -> AsyncGenerator[InferResponse, None]:
        """A piece for each piece of text, where text is wanted; the last has no more, and what is known at the end."""
        model = await self._model(request.model, request.version, call)
        if _labels(model):
            yield _marked_last(await self._classify(request, model, call))
            return
        names = wanted(request.outputs, [entry.name for entry in generation.OUTPUTS])
        asked, elements = generation.to_requests(request, model.name, uuid.uuid4().hex, self._settings.max_batch)
        if len(elements) != 1:
            raise InvalidRequest(f"a stream answers one element, and the request has {len(elements)}; send one each")
        rule = replace(elements[0].constraints, commit_rule=self._settings.streaming_rule)
        element = replace(elements[0], constraints=rule)
        version = versions.answered(request.version, model, [""])  # until somebody says whose the text is
        async with aclosing(self._service.generate(element, _timed(call, asked))) as events:
            async for event in events:
                if isinstance(event, Committed):
                    version = versions.answered(request.version, model, [event.release])
                elif isinstance(event, Delta) and event.text and "text" in names:
                    piece = Tensor("text", "BYTES", (1,), (event.text.encode(),))
                    yield InferResponse(model.name, version, request.id, {_LAST: False}, (piece,))
                elif isinstance(event, Final):
                    last = _response(request, model, generation.tensors([Answer("", event)], names), [event])
                    yield _marked_last(last)

    async def _classify(self, request: InferRequest, model: ModelInfo, call: Call) -> InferResponse:
        if self._classifies is None:
            raise NotSupported(f"{model.name} is a classifier, and this node does not serve any")
        there = [entry.name for entry in classification.outputs(model)]
        names = wanted(request.outputs, there, classification.usual(model))
        asked, elements = classification.to_requests(request, model, uuid.uuid4().hex, self._settings.max_batch)
        call = _timed(call, asked)
        several = len(elements) > 1
        work = [
            _labelled(self._classifies, element, call, f"element {index}: " if several else "")
            for index, element in enumerate(elements)
        ]
        found = await _all(work, self._settings.max_batch)
        if any(element.input_ids for element in elements):
            versions.demand_one(request.version, model, [one.release for one in found])
        return _response(request, model, classification.tensors(found, model, names), found)

    async def _whole(self, request: GenerateRequest, call: Call) -> Answer:
        texts: list[str] = []
        async with aclosing(self._service.generate(request, call)) as events:
            async for event in events:
                if isinstance(event, Delta):
                    texts.append(event.text)
                elif isinstance(event, Final):
                    return Answer("".join(texts), event)
        raise WeirError("the answer ended without saying how")

    async def _model(self, name: str, version: str, call: Call) -> ModelInfo:
        """The served model of that name and version. Raises NotFound."""
        models = (await self._service.describe(call)).models
        found = next((model for model in models if model.name == name), None)
        if found is None:
            names = ", ".join(model.name for model in models) or "none, for its engine is not there yet"
            raise NotFound(f"no model {name!r:.80} here; this node serves {names}")
        called = versions.names(found.release)
        if version and version not in called:
            raise NotFound(f"no version {version!r:.80} of {name} here; this node serves {called[0]}")
        return found


async def _labelled(classifies: Classifies, element: ClassifyRequest, call: Call, which: str) -> Classified:
    """Its label. A fault of its own begins with `which`: the others may have none."""
    try:
        return await classifies.classify(element, call)
    except (InvalidRequest, TooLarge) as error:
        raise type(error)(which + error.message) from error


async def _all(work: Sequence[Coroutine[Any, Any, T]], most: int) -> list[T]:
    """Every result in order, `most` at a time. The first fault ends the rest and is raised."""
    room = asyncio.Semaphore(most)

    async def one(coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            async with room:
                return await coroutine
        finally:
            coroutine.close()  # one that never began would be complained of

    tasks = [asyncio.create_task(one(coroutine)) for coroutine in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _labels(model: ModelInfo) -> bool:
    return "classify" in model.tasks


def _tensors_of(model: ModelInfo) -> tuple[tuple[TensorMetadata, ...], tuple[TensorMetadata, ...]]:
    if _labels(model):
        return classification.takes(model), classification.outputs(model)
    return generation.INPUTS, generation.OUTPUTS


def _timed(call: Call, asked: Asked) -> Call:
    if asked.timeout_s is None:
        return call
    return Call(call.deadline.capped(asked.timeout_s), call.traceparent, call.peer)


def _response(
    request: InferRequest,
    model: ModelInfo,
    outputs: tuple[Tensor, ...],
    answers: Sequence[Final] | Sequence[Classified],
) -> InferResponse:
    version = versions.answered(request.version, model, [answer.release for answer in answers])
    return InferResponse(model.name, version, request.id, provenance.shared(answers), outputs)


def _marked_last(response: InferResponse) -> InferResponse:
    return replace(response, parameters={**response.parameters, _LAST: True})
