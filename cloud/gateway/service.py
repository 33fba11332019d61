"""What the gateway serves: Inference, over whatever engine host is best placed now.

Invariants: a request is passed on to one host; a second host is tried once, and only while the caller
has seen nothing; within one gateway no idempotency key is computed twice at a time or after it was
answered; nothing waits longer than the request's deadline.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from cloud.admission import Admission
from cloud.config import GatewayConfig
from cloud.gateway.active import ActiveReleases
from cloud.gateway.idempotency import IdempotencyTable
from cloud.gateway.models import resolve_model
from cloud.gateway.pool import EngineLink, EnginePool
from runtime.version import weir_version
from wire.description import Description, Limits
from wire.errors import Overloaded, PreconditionFailed, TooManyHops, Unavailable, WeirError
from wire.messages import Final, GenerateEvent, GenerateRequest, Tier, TierConstraint
from wire.service import Call
from wire.validate import RequestLimits, check_request

# What says "not here, not now" about a host, rather than something about the request.
_MOVE_ON = (Unavailable, Overloaded)


class GatewayService:
    """Satisfies wire.service.InferenceService."""

    def __init__(self, config: GatewayConfig, pool: EnginePool, active: ActiveReleases) -> None:
        self._config, self._pool, self._active = config, pool, active
        self._limits = RequestLimits()
        self._admission = Admission(config.max_concurrent, config.max_queue, f"gateway {config.node}")
        self._known = IdempotencyTable(config.idempotency_ttl_s, config.idempotency_entries)
        self._draining = False

    def drain(self) -> int:
        """Takes no new requests; returns how many run or wait."""
        self._draining = True
        return self._admission.active + self._admission.queued

    async def generate(self, request: GenerateRequest, call: Call) -> AsyncGenerator[GenerateEvent, None]:
        """See InferenceService."""
        prepared = self._prepare(request, call)
        if prepared.idempotency_key:
            events = self._known.stream(prepared, call.deadline, lambda: self._answer(prepared, call))
        else:
            events = self._answer(prepared, call)
        async with aclosing(events):
            async for event in events:
                yield event

    def _prepare(self, request: GenerateRequest, call: Call) -> GenerateRequest:
        """The request as it is passed on: checked, with its model, its id and one more hop."""
        check_request(request, self._limits)
        if self._draining:
            raise Unavailable("this gateway is shutting down; ask another one")
        if request.constraints.tier is TierConstraint.EDGE_ONLY:
            raise PreconditionFailed("the request must stay on the edge (edge_only) and this is the cloud")
        if request.hops + 1 > self._limits.max_hops:
            raise TooManyHops(
                f"the request passed {request.hops} nodes of at most {self._limits.max_hops} (max_hops) and cannot be "
                "passed on; check that no node is its own upstream"
            )
        call.deadline.check()
        served = {info.name for info in self._pool.models()}
        default, references = self._config.default_model, self._active.cloud_models
        model = resolve_model(request.model, request.hops, served, default, references)
        return replace(request, model=model, hops=request.hops + 1, request_id=request.request_id or uuid.uuid4().hex)

    async def _answer(self, request: GenerateRequest, call: Call) -> AsyncGenerator[GenerateEvent, None]:
        arrived = time.monotonic()
        async with self._admission.place(call.deadline) as waited_ms, aclosing(self._ask(request, call)) as events:
            async for event in events:
                if isinstance(event, Final):
                    total_ms = (time.monotonic() - arrived) * 1e3
                    own = {"gateway_queue": waited_ms, "gateway_total": total_ms}
                    yield replace(event, tier=Tier.CLOUD, timings_ms={**event.timings_ms, **own})
                else:
                    yield event

    async def _ask(self, request: GenerateRequest, call: Call) -> AsyncGenerator[GenerateEvent, None]:
        """The events of one host; of a second one when the first fails before its first event."""
        first = self._pick(request.model)
        shown = False
        try:
            async with aclosing(_stream(first, request, call)) as events:
                async for event in events:
                    shown = True
                    yield event
            return
        except _MOVE_ON as error:
            second = self._after(first, error, request, shown)
        call.deadline.check()
        try:
            async with aclosing(_stream(second, request, call)) as events:
                async for event in events:
                    yield event
        except Unavailable as error:
            second.failed(error.message)
            raise

    def _after(self, first: EngineLink, error: WeirError, request: GenerateRequest, shown: bool) -> EngineLink:
        """The host to try after `first`; raises `error` when there is none or it is too late."""
        if isinstance(error, Unavailable):
            first.failed(error.message)
        second = None if shown else self._pool.pick(request.model, (first,))
        if second is None:
            raise error
        return second

    def _pick(self, model: str) -> EngineLink:
        link = self._pool.pick(model)
        if link is None:
            raise Unavailable(f"no engine host can answer for {model!r} now: {self._pool.why(model)}")
        return link

    async def describe(self, call: Call, probe_bytes: int = 0) -> Description:  # noqa: ARG002
        """See InferenceService. Answers from memory, whatever else is down.

        `not_ready_reason` also tells of a state store that cannot be reached, while `ready` stays true:
        requests are answered without it.
        """
        ready = self._pool.ready and not self._draining
        down = "" if ready else ("shutting down" if self._draining else self._pool.why())
        return Description(
            node=self._config.node,
            tier=Tier.CLOUD,
            version=weir_version(),
            models=self._pool.models(),
            limits=Limits(
                self._limits.max_prompt_bytes,
                self._config.max_concurrent,
                self._config.max_queue,
                self._limits.max_hops,
            ),
            active_releases=dict(self._active.releases),
            ready=ready,
            not_ready_reason="; ".join(part for part in (down, self._active.fault) if part),
            padding=b"\0" * probe_bytes,
        )


async def _stream(link: EngineLink, request: GenerateRequest, call: Call) -> AsyncGenerator[GenerateEvent, None]:
    with link.request():
        events = link.inference.generate(request, call)
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()
