"""An InferenceService and an EngineControl at the other end of a gRPC channel.

Every call's timeout is what is left of its deadline. Leaving an answer early cancels the call, which
frees the slot at every tier below. Every finished call is reported to the observer: that is the
traffic the network estimate is made from.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator

import grpc
import grpc.aio

from protos.weir.v1 import engine_pb2, inference_pb2
from wire import convert, convert_answer, convert_describe, convert_engine, convert_tasks
from wire.channel import ClientTls, Identity, Metadata, open_channel
from wire.classification import Classified, ClassifyRequest
from wire.deadline import PASSED
from wire.description import Description
from wire.engine import Activation, EngineStatus
from wire.errors import ERROR_METADATA_KEY, DeadlineExceeded, WeirError, from_grpc
from wire.messages import GenerateEvent, GenerateRequest
from wire.scoring import Scored, ScoreRequest
from wire.service import Call, Exchange, ExchangeObserver

_INFERENCE = "/" + inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name
# W3C trace context. Anything else is not passed on, as the standard demands: a stranger's header must not make
# metadata that gRPC refuses to send, which would look like a tier that cannot be reached.
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{0,256})?")
_CONTROL = "/" + engine_pb2.DESCRIPTOR.services_by_name["EngineControl"].full_name


def _error(error: grpc.aio.AioRpcError) -> WeirError:
    trailing = dict(error.trailing_metadata() or ())
    name = trailing.get(ERROR_METADATA_KEY)
    if name is None and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(PASSED)  # gRPC's own words for it ("Stream removed") help nobody
    return from_grpc(error.code(), error.details() or error.code().name, name if isinstance(name, str) else None)


class _Meter:
    """Counts one call's bytes and times for the observer."""

    def __init__(self, method: str, sent: int, observer: ExchangeObserver | None) -> None:
        self._method, self._sent, self._observer = method, sent, observer
        self._start = time.monotonic()
        self._first: float | None = None
        self._received = 0

    def received(self, data: bytes) -> None:
        self._received += len(data)
        if self._first is None:
            self._first = (time.monotonic() - self._start) * 1e3

    def finish(self, code: str) -> None:
        if self._observer is not None:
            total = (time.monotonic() - self._start) * 1e3
            self._observer.on_exchange(Exchange(self._method, self._sent, self._received, self._first, total, code))


class _Connection:
    """A channel with the metadata every call carries."""

    def __init__(self, target: str, tls: ClientTls | None, identity: Identity | None) -> None:
        self.target = target
        self._identity = identity
        self.channel = open_channel(target, tls)

    def metadata(self, call: Call) -> Metadata:
        trace = (("traceparent", call.traceparent),) if _TRACEPARENT.fullmatch(call.traceparent) else ()
        return (*trace, *(self._identity.metadata() if self._identity else ()))

    def _unary(self, method: str) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
        return self.channel.unary_unary(method)

    def unary_stream(self, method: str) -> grpc.aio.UnaryStreamMultiCallable[bytes, bytes]:
        return self.channel.unary_stream(method)

    async def unary(self, method: str, data: bytes, call: Call, observer: ExchangeObserver | None = None) -> bytes:
        call.deadline.check()
        meter = _Meter(method, len(data), observer)
        code = "CANCELLED"
        try:
            answer: bytes = await self._unary(method)(
                data, timeout=call.deadline.remaining_s(), metadata=self.metadata(call)
            )
            meter.received(answer)
            code = "OK"
            return answer
        except grpc.aio.AioRpcError as error:
            code = error.code().name
            raise _error(error) from error
        finally:
            meter.finish(code)


class InferenceClient:
    """A tier at `target`; satisfies InferenceService, Classifies and Scores (NotSupported where it does not)."""

    def __init__(
        self,
        target: str,
        tls: ClientTls | None = None,
        identity: Identity | None = None,
        observer: ExchangeObserver | None = None,
    ) -> None:
        self._connection = _Connection(target, tls, identity)
        self._observer = observer

    @property
    def target(self) -> str:
        return self._connection.target

    async def generate(self, request: GenerateRequest, call: Call) -> AsyncGenerator[GenerateEvent, None]:
        """See InferenceService. Raises the WeirError the other end raised."""
        call.deadline.check()
        data = convert.request_out(request).SerializeToString()
        meter = _Meter("Generate", len(data), self._observer)
        code = "CANCELLED"
        stream = self._connection.unary_stream(f"{_INFERENCE}/Generate")(
            data, timeout=call.deadline.remaining_s(), metadata=self._connection.metadata(call)
        )
        try:
            async for message in stream:
                meter.received(message)
                yield convert_answer.event_in(message)
            code = "OK"
        except grpc.aio.AioRpcError as error:
            code = error.code().name
            raise _error(error) from error
        finally:
            # An abandoned grpc.aio call is not cancelled by itself.
            stream.cancel()
            meter.finish(code)

    async def describe(self, call: Call, probe_bytes: int = 0) -> Description:
        """See InferenceService."""
        data = inference_pb2.DescribeRequest(probe_bytes=probe_bytes).SerializeToString()
        return convert_describe.description_in(
            await self._connection.unary(f"{_INFERENCE}/Describe", data, call, self._observer)
        )

    async def classify(self, request: ClassifyRequest, call: Call) -> Classified:
        """See wire.classification.Classifies."""
        data = convert_tasks.classify_request_out(request)
        return convert_tasks.classified_in(
            await self._connection.unary(f"{_INFERENCE}/Classify", data, call, self._observer)
        )

    async def score(self, request: ScoreRequest, call: Call) -> Scored:
        """See wire.scoring.Scores."""
        data = convert_tasks.score_request_out(request)
        return convert_tasks.scored_in(await self._connection.unary(f"{_INFERENCE}/Score", data, call, self._observer))

    async def close(self) -> None:
        await self._connection.channel.close()


class EngineControlClient:
    """An engine's control at `target`; satisfies wire.service.EngineControl."""

    def __init__(self, target: str, tls: ClientTls | None = None, identity: Identity | None = None) -> None:
        self._connection = _Connection(target, tls, identity)

    async def activate(self, release_dir: str, precision: int, call: Call) -> Activation:
        """See EngineControl."""
        data = convert_engine.activate_out(release_dir, precision)
        return convert_engine.activation_in(await self._connection.unary(f"{_CONTROL}/Activate", data, call))

    async def status(self, call: Call) -> EngineStatus:
        """See EngineControl."""
        data = convert_engine.status_request()
        return convert_engine.status_in(await self._connection.unary(f"{_CONTROL}/Status", data, call))

    async def drain(self, call: Call) -> int:
        """See EngineControl."""
        data = convert_engine.drain_request()
        return convert_engine.drained_in(await self._connection.unary(f"{_CONTROL}/Drain", data, call))

    async def close(self) -> None:
        await self._connection.channel.close()
