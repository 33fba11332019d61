"""Serves an InferenceService and an EngineControl over gRPC, with health and reflection.

Handlers take raw bytes and decode them here, so that bytes that are no message answer
INVALID_ARGUMENT rather than INTERNAL. A WeirError becomes its status; anything else is logged with
its trace and becomes INTERNAL without its text. A caller that leaves cancels the handler.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import NoReturn

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from protos.weir.v1 import engine_pb2, fleet_pb2, inference_pb2
from wire import convert, convert_answer, convert_describe, convert_engine, convert_tasks
from wire.channel import Authenticator, Metadata
from wire.classification import Classifies
from wire.deadline import Deadline
from wire.errors import ERROR_METADATA_KEY, InvalidRequest, NotSupported, WeirError, grpc_code, internal_fault
from wire.scoring import Scores
from wire.service import Call, EngineControl, InferenceService

_log = logging.getLogger("weir.wire")

_INFERENCE = inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name
_CONTROL = engine_pb2.DESCRIPTOR.services_by_name["EngineControl"].full_name
_FLEET = fleet_pb2.DESCRIPTOR.services_by_name["Fleet"].full_name

MAX_PROBE_BYTES = 256 << 10
MAX_DEADLINE_S = 86_400.0

_Context = grpc.aio.ServicerContext[bytes, bytes]
_Unary = Callable[[bytes, Call], Awaitable[bytes]]


async def _abort(context: _Context, error: WeirError) -> NoReturn:
    name = type(error).__name__
    await context.abort(grpc_code(error), error.message, ((ERROR_METADATA_KEY, name),))


class Handlers:
    """Builds guarded method handlers with one default and longest deadline and one authenticator."""

    def __init__(
        self,
        default_deadline_s: float,
        authenticator: Authenticator | None,
        max_deadline_s: float = MAX_DEADLINE_S,
    ) -> None:
        self._default_deadline_s = default_deadline_s
        self._max_deadline_s = max_deadline_s
        self._authenticator = authenticator

    def _call(self, method: str, context: _Context) -> Call:
        metadata: Metadata = tuple(
            (key, value) for key, value in context.invocation_metadata() or () if isinstance(value, str)
        )
        if self._authenticator is not None:
            self._authenticator.authenticate(method, metadata)
        remaining = context.time_remaining()
        seconds = self._default_deadline_s if remaining is None else min(remaining, self._max_deadline_s)
        return Call(Deadline.after(seconds), dict(metadata).get("traceparent", ""), context.peer() or "")

    def unary(self, method: str, serve: _Unary) -> grpc.RpcMethodHandler[bytes, bytes]:
        async def handle(data: bytes, context: _Context) -> bytes:
            try:
                return await serve(data, self._call(method, context))
            except WeirError as error:
                await _abort(context, error)
            except Exception as error:  # noqa: BLE001 - the server's boundary
                await _abort(context, _internal(method, error))

        return grpc.unary_unary_rpc_method_handler(handle)

    def stream(
        self, method: str, serve: Callable[[bytes, Call], AsyncGenerator[bytes, None]]
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        async def handle(data: bytes, context: _Context) -> AsyncIterator[bytes]:
            events: AsyncGenerator[bytes, None] | None = None
            try:
                events = serve(data, self._call(method, context))
                async for event in events:
                    yield event
            except WeirError as error:
                await _abort(context, error)
            except Exception as error:  # noqa: BLE001 - the server's boundary
                await _abort(context, _internal(method, error))
            finally:
                # Cancellation lands here first: pass it down at once, not when memory is collected.
                if events is not None:
                    await events.aclose()

        return grpc.unary_stream_rpc_method_handler(handle)

    def both_ways(
        self, method: str, serve: Callable[[bytes, Call], AsyncGenerator[bytes, None]]
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Many requests on one stream, answered one after the other; each has the default deadline."""

        async def handle(requests: AsyncIterator[bytes], context: _Context) -> AsyncIterator[bytes]:
            events: AsyncGenerator[bytes, None] | None = None
            try:
                async for data in requests:
                    events = serve(data, self._call(method, context))
                    async for event in events:
                        yield event
            except WeirError as error:
                await _abort(context, error)
            except Exception as error:  # noqa: BLE001 - the server's boundary
                await _abort(context, _internal(method, error))
            finally:
                if events is not None:
                    await events.aclose()

        return grpc.stream_stream_rpc_method_handler(handle)


def _internal(method: str, error: Exception) -> WeirError:
    _log.error("unexpected fault in %s", method, exc_info=error)
    return internal_fault()


async def _unsupported_stream(context: _Context) -> None:
    await _abort(context, NotSupported("Fleet.Sync is not served by this version"))


async def _unsupported(method: str) -> NoReturn:
    raise NotSupported(f"{method} is not served by this version; see Describe for what is")


def add_inference(
    server: grpc.aio.Server,
    service: InferenceService,
    default_deadline_s: float,
    authenticator: Authenticator | None = None,
    max_deadline_s: float = MAX_DEADLINE_S,
    *,
    classifies: Classifies | None = None,
    scores: Scores | None = None,
) -> None:
    """Serves `service` as weir.v1.Inference. A caller that allows more than `max_deadline_s` is given that.

    Classify and Score answer UNIMPLEMENTED where nobody is given for them.
    """
    handlers = Handlers(default_deadline_s, authenticator, max_deadline_s)

    async def generate(data: bytes, call: Call) -> AsyncGenerator[bytes, None]:
        async with aclosing(service.generate(convert.request_in(data), call)) as events:
            async for event in events:
                yield convert_answer.event_out(event)

    async def describe(data: bytes, call: Call) -> bytes:
        probe = convert.parse(inference_pb2.DescribeRequest, data).probe_bytes
        if not 0 <= probe <= MAX_PROBE_BYTES:
            raise InvalidRequest(f"probe_bytes is {probe}; it must lie between 0 and {MAX_PROBE_BYTES}")
        return convert_describe.description_out(await service.describe(call, probe))

    methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Generate": handlers.stream("Generate", generate),
        "Describe": handlers.unary("Describe", describe),
        "Classify": handlers.unary("Classify", _classify(classifies)),
        "Score": handlers.unary("Score", _score(scores)),
    }
    register(server, _INFERENCE, methods)


def _classify(service: Classifies | None) -> _Unary:
    async def classify(data: bytes, call: Call) -> bytes:
        if service is None:
            await _unsupported("Classify")
        return convert_tasks.classified_out(await service.classify(convert_tasks.classify_request_in(data), call))

    return classify


def _score(service: Scores | None) -> _Unary:
    async def score(data: bytes, call: Call) -> bytes:
        if service is None:
            await _unsupported("Score")
        return convert_tasks.scored_out(await service.score(convert_tasks.score_request_in(data), call))

    return score


def add_engine_control(
    server: grpc.aio.Server,
    control: EngineControl,
    default_deadline_s: float,
    authenticator: Authenticator | None = None,
) -> None:
    """Serves `control` as weir.v1.EngineControl."""
    handlers = Handlers(default_deadline_s, authenticator)

    async def activate(data: bytes, call: Call) -> bytes:
        release_dir, precision = convert_engine.activate_in(data)
        return convert_engine.activation_out(await control.activate(release_dir, precision, call))

    async def status(_data: bytes, call: Call) -> bytes:
        return convert_engine.status_out(await control.status(call))

    async def drain(_data: bytes, call: Call) -> bytes:
        return convert_engine.drained_out(await control.drain(call))

    methods = {
        "Activate": handlers.unary("Activate", activate),
        "Status": handlers.unary("Status", status),
        "Drain": handlers.unary("Drain", drain),
    }
    register(server, _CONTROL, methods)


def add_unserved_fleet(server: grpc.aio.Server) -> None:
    """Answers every Fleet call with UNIMPLEMENTED and its name, so that a newer node knows why."""
    handlers = Handlers(10.0, None)

    async def sync(_requests: AsyncIterator[bytes], context: _Context) -> AsyncIterator[bytes]:
        await _unsupported_stream(context)
        yield b""  # never reached; it makes this an async generator

    methods = {
        "Enroll": handlers.unary("Enroll", lambda _data, _call: _unsupported("Fleet.Enroll")),
        "Explain": handlers.unary("Explain", lambda _data, _call: _unsupported("Fleet.Explain")),
        "Sync": grpc.stream_stream_rpc_method_handler(sync),
    }
    register(server, _FLEET, methods)


def register(server: grpc.aio.Server, service: str, methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]]) -> None:
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))


class HealthReporter:
    """grpc.health.v1 for a server: one overall state, said for every service it serves."""

    def __init__(
        self, server: grpc.aio.Server, services: Iterable[str] = ("Inference",), others: Iterable[str] = ()
    ) -> None:
        """`services` are of weir.v1, `others` full names of a standard's."""
        self._servicer = health.aio.HealthServicer()
        self._names = ("", *(f"weir.v1.{name}" for name in services), *others)
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        reflection.enable_server_reflection((*self._names[1:], health.SERVICE_NAME, reflection.SERVICE_NAME), server)

    async def set(self, serving: bool) -> None:
        state = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in self._names:
            await self._servicer.set(name, state)
