"""Asks the upstream: one attempt, made plain when the draft is refused, retried once at most.

An escalation is the same request one hop further, under the same idempotency key at every try, so
that an upstream which has answered it already need not compute it twice. It gets the request's own
deadline less what the edge would need to answer by itself, and is given up sooner where it stays silent
(edge.patience), so that an upstream which breaks or stalls still leaves a degraded answer in good
time. Nothing is tried again once a word has come. A node above
tries its own upstream again by itself, so that one is not asked twice: retries add up along a chain of
nodes and never multiply, and a request that passed too many nodes is not sent round again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import replace

from edge.patience import Patience, patience_with, tell_failure
from edge.ports import Clock, Local, Outlook
from edge.run import Run
from wire.deadline import Deadline
from wire.errors import DeadlineExceeded, PreconditionFailed, TooManyHops, Unavailable, WeirError
from wire.messages import BEAT, Committed, Delta, Draft, Final, GenerateEvent, GenerateRequest
from wire.service import Call, InferenceService

RETRY_AFTER_S = 0.1
SILENT = "the upstream did not answer within the time set aside for it"
_DRAFT_TOKEN_BYTES = 7  # about three of its id and four of its log-prob
_STREAM_END_S = 0.5  # after the answer's end, for that of the call


class Escalator:
    """Sends requests to `upstream` and yields what comes back, from its first Delta on."""

    def __init__(self, upstream: InferenceService, outlook: Outlook, local: Local, clock: Clock) -> None:
        self._upstream, self._outlook, self._local, self._clock = upstream, outlook, local, clock

    async def events(self, run: Run) -> AsyncGenerator[Delta | Final, None]:
        """Deltas and one Final. Raises WeirError; before the first event nothing may be shown."""
        request = self._forwarded(run)
        times = self._times(run)
        call = Call(times.call, run.call.traceparent, run.call.peer, times.first_word)
        run.upstream_began = self._clock()
        retried = False
        while True:
            heard = False
            try:
                async with aclosing(self._once(run, request, call, times)) as events:
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
                if heard or retried or not self._worth_another(times):
                    raise
                retried = True
                await asyncio.sleep(RETRY_AFTER_S)
            finally:
                run.upstream_ended_at = self._clock()

    def _worth_another(self, times: Patience) -> bool:
        if self._outlook.is_node():
            return False
        return self._outlook.view(1).admits and times.first_word.remaining_s() > 2 * RETRY_AFTER_S

    async def _once(
        self, run: Run, request: GenerateRequest, call: Call, times: Patience
    ) -> AsyncGenerator[Delta | Final, None]:
        """One call, with its outcome told to the outlook whatever happens."""
        began = self._clock()
        allotted_s = times.first_word.remaining_s()
        run.upstream_heard_at = None
        self._outlook.started()
        told = False
        try:
            async with aclosing(self._heard(run, request, call, times)) as events:
                async for event in events:
                    if isinstance(event, Final):
                        told = True
                        # Not now: the call may have taken its time to end after the answer.
                        ended_at = run.upstream_heard_at or self._clock()
                        first_at = run.upstream_first_at or ended_at
                        self._outlook.succeeded(event, first_at - began, ended_at - began, _sent_bytes(run))
                    yield event
        except WeirError as error:
            silent_s = None if run.upstream_heard_at is None else self._clock() - run.upstream_heard_at
            if not told:
                told = True
                wordless_s = self._clock() - began if run.upstream_first_at is None else 0.0
                tell_failure(self._outlook, error, times, allotted_s if silent_s is None else silent_s, wordless_s)
            raise
        finally:
            if not told:
                self._outlook.abandoned()

    async def _heard(
        self, run: Run, request: GenerateRequest, call: Call, times: Patience
    ) -> AsyncGenerator[Delta | Final, None]:
        final, patience = None, times.first_word
        async with aclosing(self._upstream.generate(request, call)) as events:
            while final is None and (event := await _next(events, patience)) is not None:
                run.upstream_heard_at = self._clock()
                if isinstance(event, Committed):
                    run.upstream_tier, run.upstream_release = event.tier, event.release
                    run.upstream_reason = event.reason
                elif event != BEAT:
                    if run.upstream_first_at is None:
                        run.upstream_first_at = run.upstream_heard_at
                    if isinstance(event, Final):
                        final, run.upstream_tier = event, event.tier
                    else:
                        yield event
                        run.upstream_heard_at = self._clock()  # a slow reader is no silence of the upstream's
                patience = _after(run, times)
            if final is not None:
                await _to_the_end(events, times.call)
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
        if not served.reads_as(theirs):
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

    def _times(self, run: Run) -> Patience:
        return patience_with(
            self._outlook,
            self._local,
            run.asked,
            run.call.deadline,
            _sent_bytes(run),
            in_hand=run.answer is not None,
            edge_failed=run.edge_error is not None,
            streams=run.asked.commit_prefix is not None,
        )


def _after(run: Run, times: Patience) -> Deadline:
    """How long the upstream may be silent after an event. One that may be writing a tool's call says nothing of it."""
    begun = run.upstream_first_at is not None
    if begun and run.asked.commit_prefix is not None:  # shown, so that nobody else can answer any more
        return times.call
    if not begun and run.request.hops:  # the node below hears nothing of it, and must not give up first
        return times.first_word
    return times.fallback if run.request.tools else times.next_word(begun=begun)


def _sent_bytes(run: Run) -> int:
    """About what went up before the upstream could begin: the prompt, and the draft where there was one."""
    return run.asked.prompt_bytes + _DRAFT_TOKEN_BYTES * run.draft_offered


async def _next(events: AsyncGenerator[GenerateEvent, None], deadline: Deadline) -> GenerateEvent | None:
    """The next event, or None at the end. Raises DeadlineExceeded whoever the other end is."""
    try:
        async with asyncio.timeout(max(deadline.remaining_s(), 0.0)):
            return await anext(events)
    except StopAsyncIteration:
        return None
    except TimeoutError as error:
        raise DeadlineExceeded(SILENT) from error


async def _to_the_end(events: AsyncGenerator[GenerateEvent, None], deadline: Deadline) -> None:
    """So that the call ends as a success and not as one we left. What comes after an end is none of the answer.

    Nor does it take the answer back: a call that breaks once the answer is whole has brought what it was for.
    """
    soon = deadline.capped(_STREAM_END_S)
    with suppress(WeirError):
        while await _next(events, soon) is not None:
            continue
