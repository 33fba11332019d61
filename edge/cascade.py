"""The node's own InferenceService: the edge first, the upstream where the edge is not sure enough.

    decide(BEFORE) ─▶ RUN ─▶ edge decodes ─▶ decide(DURING) at every piece ─▶ decide(AFTER)
         │                                       │ COMMIT: show, edge to the end    │
         └──────────▶ ESCALATE ◀─────────────────┴──────────────────────────────────┤
                         │ upstream fails before anything was shown                 └▶ ANSWER
                         └──────────▶ decide again: the edge's answer, degraded, or REFUSE

Invariants. What a client saw is never taken back nor repeated: an edge answer that was committed
goes on to its end, and an upstream answer that broke off after its first word is an error. A client
whose commit rule is "end" sees nothing before the whole answer is there, so the upstream's answer
is collected for it, and an upstream that dies halfway still leaves a degraded edge answer. A client
that streams sees the upstream's words as they come. The upstream is asked once per request, the
edge at most twice (again only after the upstream failed and the first try was cut short). Token ids that a
caller names (a bias) go up only where they mean the same: see edge.judge.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from edge.escalation import Escalator
from edge.events import EdgeFailed, EscalationFailed
from edge.judge import CascadeParts, CascadeSettings, Judge, asked
from edge.provenance import edge_committed, edge_final, upstream_committed, upstream_final
from edge.refusal import bare, refusal
from edge.run import Attempt, Run, joined
from edge.way_in import WayIn, named
from router.decision import Action, Decision, Moment
from wire.errors import (
    Cancelled,
    CannotConstrain,
    ContextTooLong,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    Unavailable,
    WeirError,
)
from wire.messages import Committed, Delta, Final, GenerateEvent, GenerateRequest
from wire.service import CHANGING, Call
from wire.validate import check_request, commit_prefix

_FINAL_FAULTS = (InvalidRequest, NotFound, Cancelled, DeadlineExceeded)
# Of those, what another tier may be able to do.
_OF_THIS_TIER = (ContextTooLong, CannotConstrain)


class Cascade:
    """Answers requests; `generate` alone (see edge.node for the whole InferenceService)."""

    def __init__(self, parts: CascadeParts, settings: CascadeSettings) -> None:
        self._parts, self._settings = parts, settings
        self._judge = Judge(parts, settings)
        self._escalator = Escalator(parts.upstream, parts.outlook, parts.local, parts.clock)
        self._way_in = WayIn(settings.max_requests, "requests")

    @property
    def running(self) -> int:
        """Requests in this node now."""
        return self._way_in.inside

    async def generate(self, request: GenerateRequest, call: Call) -> AsyncGenerator[GenerateEvent, None]:
        """See InferenceService."""
        run = self._begin(request, call)
        with self._way_in.counted():
            run.next = self._judge.decide(run, Moment.BEFORE)
            # Every stage sets what comes next, or None when the answer is out.
            while (decision := run.next) is not None:
                run.next = None
                async with aclosing(self._stage(run, decision)) as events:
                    async for event in events:
                        yield event

    def _stage(self, run: Run, decision: Decision) -> AsyncGenerator[GenerateEvent, None]:
        match decision.action:
            case Action.RUN:
                return self._edge(run)
            case Action.ESCALATE:
                return self._upstream(run, decision)
            case Action.ANSWER:
                return self._answer(run, decision)
        raise refusal(run, decision, self._parts.outlook.view(self._settings.limits.max_hops - run.request.hops))

    # --- the edge

    async def _edge(self, run: Run) -> AsyncGenerator[GenerateEvent, None]:
        """Lets the edge decode; yields only once it is committed."""
        run.spent += 0 if run.attempt is None else run.attempt.tokens
        attempt = run.attempt = Attempt(self._parts.clock())
        run.previous_tokens = 0
        # The engine is part of this node and no hop: its own limit must not cut a longer chain short.
        told = replace(run.request, return_logprobs=True, return_signals=True, draft=None, hops=0)
        try:
            async with aclosing(self._parts.engine.generate(told, run.call)) as events:
                async for event in events:
                    if isinstance(event, Final):
                        attempt.final, attempt.ended_at = event, self._parts.clock()
                    if isinstance(event, Committed):
                        attempt.release = event.release
                    if not isinstance(event, Delta):
                        continue
                    attempt.add(event, self._parts.clock())
                    if run.committed is not None:
                        for delta in run.shown([event]):
                            yield delta
                        continue
                    decision = self._judge.during(run)
                    if decision is not None and decision.action is Action.ESCALATE:
                        run.next = decision
                        return
                    if decision is not None and decision.action is Action.COMMIT:
                        run.committed = decision
                        yield edge_committed(run, attempt, decision)
                        for delta in run.shown_at_once(attempt.deltas):
                            yield delta
        except WeirError as error:
            self._edge_broke(run, error)
            return
        finally:
            attempt.ended_at = attempt.ended_at or self._parts.clock()
        if attempt.final is None:
            self._edge_broke(run, WeirError("the edge's answer broke off without an end"))
            return
        self._measured(attempt, attempt.final)
        run.next = self._judge.decide(run, Moment.AFTER)

    def _edge_broke(self, run: Run, error: WeirError) -> None:
        """Decides what follows a failed attempt; raises when nothing can."""
        now = self._parts.clock()
        if isinstance(error, _FINAL_FAULTS) and not isinstance(error, _OF_THIS_TIER):
            raise error
        self._parts.sink.emit(EdgeFailed(now, run.request.request_id, type(error).__name__, error.message))
        if isinstance(error, Unavailable):
            self._parts.local.failed()
        if run.committed is not None:
            raise _broken_off("edge's engine", error) from error
        run.edge_error = error
        run.next = self._judge.decide(run, Moment.AFTER)

    def _measured(self, attempt: Attempt, final: Final) -> None:
        # A wait for other weights says nothing of how fast these are.
        began = attempt.began + final.timings_ms.get(CHANGING, 0.0) / 1e3
        first_s = None if attempt.first_at is None else attempt.first_at - began
        self._parts.local.answered(final, first_s, (attempt.ended_at or began) - began)

    async def _answer(self, run: Run, decision: Decision) -> AsyncGenerator[GenerateEvent, None]:
        """The edge's answer, or what of it was not shown yet."""
        attempt = run.answer
        if attempt is None or attempt.final is None:
            raise WeirError("decided to give an answer that is not there")
        if run.committed is None:
            yield edge_committed(run, attempt, decision)
            for delta in run.shown_at_once(attempt.deltas):
                yield delta
        yield replace(
            edge_final(run, attempt.final, decision, self._parts.clock()),
            node=self._settings.node,
        )

    # --- the upstream

    async def _upstream(self, run: Run, decision: Decision) -> AsyncGenerator[GenerateEvent, None]:
        """The upstream's answer, as it comes or, for a client that waits for the end, as a whole."""
        held: list[Delta] | None = [] if run.asked.commit_prefix is None else None
        committed = False
        try:
            async with aclosing(self._escalator.events(run)) as events:
                async for event in events:
                    if isinstance(event, Delta) and held is not None:
                        held.append(event)
                        continue
                    if not committed:
                        committed = True
                        yield upstream_committed(run, event, decision)
                    if isinstance(event, Final):
                        for delta in joined(held or ()):
                            yield delta
                        yield upstream_final(run, event, decision, self._parts.clock())
                    else:
                        yield event
        except Cancelled:
            raise
        except WeirError as error:
            if committed:
                raise _broken_off("upstream", error) from error
            self._upstream_broke(run, error)

    def _upstream_broke(self, run: Run, error: WeirError) -> None:
        """Decides again, now that the upstream is out of the question."""
        now = self._parts.clock()
        self._parts.sink.emit(EscalationFailed(now, run.request.request_id, type(error).__name__, error.message))
        run.upstream_error = error
        finished = run.answer is not None or run.edge_error is not None
        run.next = self._judge.decide(run, Moment.AFTER if finished else Moment.BEFORE)

    # --- the way in

    def _begin(self, request: GenerateRequest, call: Call) -> Run:
        """Checks a request and gives it what it needs on its way. Raises WeirError."""
        settings = self._settings
        check_request(request, settings.limits)
        call.deadline.check()
        served = self._parts.local.served
        name = settings.model or (served.name if served is not None else "")
        if request.model and name and request.model != name:
            raise NotFound(f"no model {request.model!r} here; this node serves {name!r}")
        self._way_in.demand_room()
        request = named(request, name)
        rule = request.constraints.commit_rule or settings.commit_rule
        return Run(request, call, asked(request, commit_prefix(rule), settings), self._parts.clock(), served)


def _broken_off(who: str, error: WeirError) -> WeirError:
    """The error of an answer that was partly shown. Its text stands: nothing is repeated or mixed."""
    if isinstance(error, (DeadlineExceeded, CannotConstrain)):  # asking again would end the same
        return error
    return Unavailable(f"the {who} broke off in the middle ({bare(error)}); the text so far stands, ask again")
