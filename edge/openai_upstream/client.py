"""The client: an InferenceService over an OpenAI-compatible endpoint.

Always streams, so that the first words come early and leaving ends the work there: the connection is
closed. One try, but for two cases in which the endpoint did nothing yet: it was busy and names a time to
come back that its caller can wait for, or it refuses a field that has another name or can be left out
(`dialect`). `describe` asks for the models.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import httpx

from edge.openai_upstream import body, faults
from edge.openai_upstream.answer import Answer
from edge.openai_upstream.dialect import DISPENSABLE, Dialect
from edge.openai_upstream.events import MAX_WHOLE_BYTES, events_in_turns
from edge.openai_upstream.faults import Refused
from edge.openai_upstream.logprobs import Logprobs
from edge.openai_upstream.models import description, only_model
from edge.openai_upstream.settings import OpenAiSettings
from edge.openai_upstream.transport import Asked, Connection, Meter, blocks, read_all
from edge.openai_upstream.words import words
from wire.classification import Classified, ClassifyRequest
from wire.description import Description
from wire.errors import (
    InvalidRequest,
    NotSupported,
    PermissionDenied,
    PreconditionFailed,
    Unauthenticated,
    WeirError,
    grpc_code,
)
from wire.messages import BEAT, Committed, Delta, Final, GenerateEvent, GenerateRequest, Reason, Tier
from wire.service import Call, ExchangeObserver

_MOST_MODELS_BYTES = 2 << 20
_MOST_FAULT_BYTES = 64 << 10
_NEITHER_LISTED = (404, 405, 501)


class OpenAiUpstream:
    """Satisfies wire.service.InferenceService. Close it."""

    def __init__(self, settings: OpenAiSettings, observer: ExchangeObserver | None = None) -> None:
        self._settings, self._observer = settings, observer
        self._connection = Connection(settings)
        self._described: Description | None = None
        self._dialect = Dialect()

    @property
    def target(self) -> str:
        return self._settings.url

    async def close(self) -> None:
        await self._connection.close()

    # --- InferenceService

    async def generate(self, request: GenerateRequest, call: Call) -> AsyncGenerator[GenerateEvent, None]:
        """See InferenceService. Raises WeirError."""
        call.deadline.check()
        meter = Meter("Generate", self._observer)
        code = "CANCELLED"
        try:
            async with aclosing(self._tried(request, call, meter)) as events:
                async for event in events:
                    yield event
            code = "OK"
        except WeirError as error:
            code = grpc_code(error).name
            raise
        finally:
            meter.finish(code)

    async def describe(self, call: Call, probe_bytes: int = 0) -> Description:  # noqa: ARG002 - nothing to pad
        """See InferenceService: the models it lists. Ready unless it refuses this node's key."""
        call.deadline.check()
        meter = Meter("Describe", self._observer)
        code = "UNAVAILABLE"
        try:
            told = await self._listed(call, meter)
            code = "OK"
        except WeirError as error:
            code = grpc_code(error).name
            raise
        finally:
            meter.finish(code)
        if told.ready:
            self._described = told
        return told

    async def classify(self, _request: ClassifyRequest, _call: Call) -> Classified:
        """An OpenAI-compatible endpoint labels nothing. Raises NotSupported."""
        raise NotSupported("an OpenAI-compatible upstream serves no classification")

    # --- an answer

    async def _tried(
        self, request: GenerateRequest, call: Call, meter: Meter
    ) -> AsyncGenerator[Committed | Delta | Final, None]:
        waited, dialect = False, self._dialect
        while True:
            try:
                async with aclosing(self._once(request, dialect, call, meter)) as events:
                    async for event in events:
                        yield event
                return
            except Refused as refused:
                # Nothing was shown yet: a refusal is the whole answer of its try.
                error = faults.of_status(refused, self._settings.api_key)
                other = dialect.after(refused.parameter(DISPENSABLE))
                if other is not None and isinstance(error, InvalidRequest):
                    dialect = other
                    continue
                wait_s = refused.retry_after_s()
                if waited or wait_s is None or refused.status != 429 or not self._fits(wait_s, call):
                    raise error from None
                waited = True
                await asyncio.sleep(wait_s)

    def _fits(self, wait_s: float, call: Call) -> bool:
        """Whether waiting is worth it: after it at least as long must be left again, until a first word is due."""
        left_s = (call.first_word or call.deadline).remaining_s()
        return wait_s <= self._settings.max_retry_wait_s and 2 * wait_s < left_s

    async def _once(
        self, request: GenerateRequest, dialect: Dialect, call: Call, meter: Meter
    ) -> AsyncGenerator[Committed | Delta | Final, None]:
        """One try. Raises Refused for a status that is no success, else WeirError."""
        to_node = await self._is_node(request, call)
        document = body.document(request, self._model(request.model), dialect, to_node=to_node)
        answer = Answer(self._connection.host, request.request_id, Logprobs.of(request), self._settings.api_key)
        asked = Asked("POST", body.path(request), document, body.headers(request, call))
        async with self._connection.asking(asked, call, meter) as response:
            if response.status_code != 200:
                raise Refused(
                    response.status_code, response.headers, await read_all(response, call, meter, _MOST_FAULT_BYTES)
                )
            self._dialect = self._dialect.joined(dialect)
            committed = False
            async with aclosing(_deltas(response, answer, call, meter)) as deltas:
                async for delta in deltas:
                    if not committed:
                        committed = True
                        yield _committed(response.headers, request.request_id)
                    yield delta
            yield answer.final(request.hops)

    async def _is_node(self, request: GenerateRequest, call: Call) -> bool:
        """Whether a Weir node is there. A class may be private to it: nothing of one goes to who is not known yet."""
        if self._described is None and request.context.request_class:
            await self.describe(call)
        return self._described is not None and self._described.tier is Tier.EDGE

    def _model(self, name: str) -> str:
        found = name or self._settings.model or only_model(self._described)
        if not found:
            raise PreconditionFailed(
                f"the upstream {self._connection.host} serves several models or lists none; say which by upstream_model"
            )
        return found

    # --- what it serves

    async def _listed(self, call: Call, meter: Meter) -> Description:
        async with self._connection.asking(Asked("GET", "/models"), call, meter) as response:
            status = response.status_code
            if status == 200:
                told = await read_all(response, call, meter, _MOST_MODELS_BYTES)
                return description(told, self._settings, self._connection.host)
            refused = Refused(status, response.headers, await read_all(response, call, meter, _MOST_FAULT_BYTES))
        if status in _NEITHER_LISTED:  # it need not list any
            return description(b"", self._settings, self._connection.host)
        error = faults.of_status(refused, self._settings.api_key)
        if isinstance(error, (Unauthenticated, PermissionDenied)):
            known = self._described or Description(self._connection.host, Tier.CLOUD)
            return Description(
                self._connection.host, known.tier, models=known.models, ready=False, not_ready_reason=error.message
            )
        if status == 429:  # it is there, and busy with others
            return self._described or description(b"", self._settings, self._connection.host)
        raise error


async def _deltas(response: httpx.Response, answer: Answer, call: Call, meter: Meter) -> AsyncGenerator[Delta, None]:
    """The answer's deltas; a BEAT for an event without text (a role, reasoning). Ends with its end, or raises."""
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        for delta in answer.whole(await read_all(response, call, meter, MAX_WHOLE_BYTES)):
            yield delta
        return
    begun, ended, done = False, (lambda: answer.ended), (lambda: answer.done)
    async with (
        aclosing(blocks(response, ended, done, call, meter)) as parts,
        aclosing(events_in_turns(parts)) as events,
    ):
        async for data in events:
            if answer.done:
                continue  # what follows [DONE] in its block; the body is read to its end
            silent = True
            for delta in answer.event(data):
                begun, silent = True, False
                yield delta
            if silent and not (begun and answer.ended):
                begun = True
                yield BEAT


def _committed(headers: httpx.Headers, request_id: str) -> Committed:
    """Weir's nodes say in headers what an answer was committed as; any other endpoint is the cloud."""
    tier = next((tier for tier in Tier if tier == headers.get("x-weir-tier")), Tier.CLOUD)
    reason = next((reason for reason in Reason if reason == headers.get("x-weir-reason")), Reason.CLOUD_ONLY)
    return Committed(tier, reason, request_id, words(headers.get("x-weir-release")))
