"""Asks the upstream: one attempt, made plain when the draft is refused, retried once at most.

An escalation is the same request one hop further, under the same idempotency key at every try, so
that an upstream which has answered it already need not compute it twice. It gets the request's own
deadline less what the edge would need to answer by itself, so that an upstream which breaks or
stalls still leaves a degraded answer in time. Nothing is tried again once a word has come. A node above
tries its own upstream again by itself, so that one is not asked twice: retries add up along a chain of
nodes and never multiply, and a request that passed too many nodes is not sent round again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from edge.ports import Clock, Local, Outlook
from edge.run import Run
from router.latency import edge_forecast
from wire.deadline import Deadline
from wire.errors import (
    Cancelled,
    Conflict,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    NotSupported,
    PreconditionFailed,
    TooLarge,
    TooManyHops,
    Unavailable,
    WeirError,
)
from wire.messages import Committed, Delta, Draft, Final, GenerateEvent, GenerateRequest
from wire.service import Call, InferenceService

RETRY_AFTER_S = 0.1
_ANSWER_IN_HAND_S = 0.2  # to hand over an answer the edge has already
_MOST_RESERVED = 0.5  # of the time left, for an edge that still has to write its answer
_FAIR_DEADLINE_S = 1.0
_NOT_ITS_FAULT = (InvalidRequest, NotSupported, NotFound, PreconditionFailed, TooLarge, Conflict, Cancelled)
_DRAFT_TOKEN_BYTES = 7  # about three of its id and four of its log-prob
_UNKNOWN_RESERVED = 0.3  # likewise, while nobody knows how long it takes


class Escalator:
    """Sends requests to `upstream` and yields what comes back, from its first Delta on."""

    def __init__(self, upstream: InferenceService, outlook: Outlook, local: Local, clock: Clock) -> None:
        self._upstream, self._outlook, self._local, self._clock = upstream, outlook, local, clock

    async def events(self, run: Run) -> AsyncGenerator[Delta | Final, None]:
        """Deltas and one Final. Raises WeirError; before the first event nothing may be shown."""
        call = Call(self._deadline(run), run.call.traceparent, run.call.peer)
        request = self._forwarded(run)
        run.upstream_began = self._clock()
        retried = False
        while True:
            heard = False
            try:
                async with aclosing(self._once(run, request, call)) as events:
                    async for event in events:
                        heard = True
                        yield event
                return
            except PreconditionFailed as error:
                if heard or request.draft is None or isinstance(error, TooManyHops):
                    raise
                request = replace(request, draft=None)
                run.draft_offered, run.draft_status = 0, "unsupported"
            except Unavailable:
                if heard or retried or not self._worth_another(call):
                    raise
                retried = True
                await asyncio.sleep(RETRY_AFTER_S)
            finally:
                run.upstream_ended_at = self._clock()

    def _worth_another(self, call: Call) -> bool:
        if self._outlook.is_node():
            return False
        return self._outlook.view(1).admits and call.deadline.remaining_s() > 2 * RETRY_AFTER_S

    async def _once(self, run: Run, request: GenerateRequest, call: Call) -> AsyncGenerator[Delta | Final, None]:
        """One call, with its outcome told to the outlook whatever happens."""
        began = self._clock()
        allotted_s = call.deadline.remaining_s()
        self._outlook.started()
        told = False
        try:
            async with aclosing(self._heard(run, request, call)) as events:
                async for event in events:
                    if isinstance(event, Final):
                        told = True
                        first_at = run.upstream_first_at or self._clock()
                        total_s = self._clock() - began
                        self._outlook.succeeded(event, first_at - began, total_s, _sent_bytes(run))
                    yield event
        except WeirError as error:
            if speaks_against(error, allotted_s):
                told = True
                self._outlook.failed()
            raise
        finally:
            if not told:
                self._outlook.abandoned()

    async def _heard(self, run: Run, request: GenerateRequest, call: Call) -> AsyncGenerator[Delta | Final, None]:
        final: Final | None = None
        async with aclosing(self._upstream.generate(request, call)) as events:
            # Read to the very end, so that the call ends as a success and not as one we left.
            while (event := await _next(events, call.deadline)) is not None:
                if isinstance(event, Committed):
                    run.upstream_tier, run.upstream_release = event.tier, event.release
                    run.upstream_reason = event.reason
                    continue
                if run.upstream_first_at is None:
                    run.upstream_first_at = self._clock()
                if isinstance(event, Final):
                    final, run.upstream_tier = event, event.tier
                else:
                    yield event
        if final is None:
            raise Unavailable("the upstream's answer broke off without an end")
        yield final

    def _forwarded(self, run: Run) -> GenerateRequest:
        draft = self._draft(run)
        run.draft_offered = 0 if draft is None else len(draft.token_ids)
        return replace(
            run.request, model=self._outlook.forward_as(run.request.model), hops=run.request.hops + 1, draft=draft
        )

    def _draft(self, run: Run) -> Draft | None:
        """The edge's tokens, for an upstream whose tokenizer gives them the same meaning."""
        attempt, served = run.attempt, run.served
        if attempt is None or served is None or not attempt.token_ids:
            return None
        theirs = self._outlook.model(run.request.model)
        if theirs is None or not served.tokenizer_digest or theirs.tokenizer_digest != served.tokenizer_digest:
            run.draft_status = "mismatch"
            return None
        final = attempt.final
        return Draft(
            release=final.release if final is not None else served.release,
            precision=final.precision if final is not None else served.precision,
            tokenizer_digest=served.tokenizer_digest,
            calibration_id=served.calibration_id,
            token_ids=tuple(attempt.token_ids),
            logprobs=tuple(attempt.logprobs) if len(attempt.logprobs) == len(attempt.token_ids) else (),
        )

    def _deadline(self, run: Run) -> Deadline:
        """The request's deadline less what a fallback needs."""
        left = run.call.deadline.remaining_s()
        alone = run.edge_error is not None or run.asked.tier == "cloud_only"
        in_hand = run.answer is not None
        return Deadline(
            run.call.deadline.at
            - reserved_s(self._local, left, in_hand=in_hand, alone=alone, tokens=run.asked.max_tokens)
        )


def reserved_s(local: Local, left_s: float, *, in_hand: bool, alone: bool, tokens: int) -> float:
    """Of the time left, what the edge needs to give its answer should the upstream fail.

    `in_hand`: it has the answer already. `alone`: the edge will not answer in any case.
    """
    left = max(left_s, 0.0)
    if in_hand:
        return min(_ANSWER_IN_HAND_S, left * _MOST_RESERVED)
    if alone or not local.view().available:
        return 0.0
    forecast = edge_forecast(local.view(), tokens)
    return min(forecast.seconds, left * _MOST_RESERVED) if forecast.complete else left * _UNKNOWN_RESERVED


def _sent_bytes(run: Run) -> int:
    """About what went up before the upstream could begin: the prompt, and the draft where there was one."""
    return run.asked.prompt_bytes + _DRAFT_TOKEN_BYTES * run.draft_offered


def speaks_against(error: WeirError, allotted_s: float) -> bool:
    """Whether a failure is the upstream's. A caller's fault is not, nor is a deadline hardly anyone could meet.

    Nor what is not served or not there: one caller may ask for it and others not. Where it is the operator's fault (a
    model or a path that the upstream does not have), resting would not mend it, and the log says so each time.
    """
    if isinstance(error, DeadlineExceeded):
        return allotted_s >= _FAIR_DEADLINE_S
    return not isinstance(error, _NOT_ITS_FAULT)


async def _next(events: AsyncGenerator[GenerateEvent, None], deadline: Deadline) -> GenerateEvent | None:
    """The next event, or None at the end. Raises DeadlineExceeded whoever the other end is."""
    try:
        async with asyncio.timeout(max(deadline.remaining_s(), 0.0)):
            return await anext(events)
    except StopAsyncIteration:
        return None
    except TimeoutError as error:
        raise DeadlineExceeded("the upstream did not answer within the time set aside for it") from error
