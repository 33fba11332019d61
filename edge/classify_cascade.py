"""Labels texts: the edge's classifier first, the upstream's where the edge is not sure enough.

    decide(BEFORE) ─▶ RUN ─▶ edge labels ─▶ decide(AFTER) ─▶ ANSWER
         │                                      │
         └──────────▶ ESCALATE ◀────────────────┘
                          │ upstream fails
                          └──────▶ decide again: the edge's label, degraded, or REFUSE

The rules are the router's own, as for text: a label is an answer that is finished at once, so nothing is decided
while it is made. The upstream is asked once per request, the edge at most twice (again only after the upstream
failed before the edge was asked). Token ids are the edge's own model's, so the upstream is never asked with them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edge.calibration import Calibrated
from edge.classify_escalation import ClassifyEscalator
from edge.classify_run import ClassifyRun, edge_classified, upstream_classified
from edge.events import EdgeFailed, EscalationFailed, Sink
from edge.judge import CascadeSettings, state_of
from edge.local import LocalState
from edge.ports import Clock, Outlook, Uniform
from edge.refusal import refusal
from edge.way_in import WayIn, named
from router.calibration import InForce
from router.decision import Action, Decision, Moment, Observation
from router.decision import Request as Asked
from router.events import Decided
from router.label_confidence import LabelSignals, label_features, of_many, of_one
from router.policy import decide
from wire.capabilities import classify_needs
from wire.classification import Classified, Classifies, ClassifyRequest
from wire.errors import (
    Cancelled,
    ContextTooLong,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    Unavailable,
    WeirError,
)
from wire.service import CHANGING, Call
from wire.validate import check_classify

_FINAL_FAULTS = (InvalidRequest, NotFound, Cancelled, DeadlineExceeded)


@dataclass(frozen=True, slots=True)
class ClassifyParts:
    """What it is made of."""

    engine: Classifies
    local: LocalState
    upstream: Classifies
    outlook: Outlook
    calibrated: Calibrated
    sink: Sink
    clock: Clock
    uniform: Uniform


class ClassifyCascade:
    """Satisfies wire.classification.Classifies, of one model."""

    def __init__(self, parts: ClassifyParts, settings: CascadeSettings) -> None:
        self._parts, self._settings = parts, settings
        self._escalator = ClassifyEscalator(parts.upstream, parts.outlook, parts.local, parts.clock)
        self._way_in = WayIn(settings.max_requests, "texts")

    async def classify(self, request: ClassifyRequest, call: Call) -> Classified:
        """See Classifies."""
        run = self._begin(request, call)
        with self._way_in.counted():
            decision = self._decide(run, Moment.BEFORE)
            while True:
                match decision.action:
                    case Action.RUN:
                        decision = await self._edge(run)
                    case Action.ESCALATE:
                        answer = await self._upstream(run, decision)
                        if answer is not None:
                            return answer
                        finished = run.answer is not None or run.edge_error is not None
                        decision = self._decide(run, Moment.AFTER if finished else Moment.BEFORE)
                    case Action.ANSWER if run.answer is not None:
                        return edge_classified(run, run.answer, decision, self._parts.clock(), self._settings.node)
                    case _:
                        hops_left = self._settings.limits.max_hops - run.request.hops
                        raise refusal(run, decision, self._parts.outlook.view(hops_left))

    async def _edge(self, run: ClassifyRun) -> Decision:
        """Has the edge label it, and decides what follows. Raises WeirError when nothing can."""
        parts = self._parts
        run.edge_began, run.edge_ended = parts.clock(), None
        # All scores: they are what confidence is told from. The engine is part of this node and no hop.
        told = replace(run.request, top_labels=0, hops=0)
        try:
            run.answer = await parts.engine.classify(told, run.call)
        except WeirError as error:
            self._edge_broke(run, error)
        finally:
            run.edge_ended = parts.clock()
        if run.answer is not None:
            waited_s = run.answer.timings_ms.get(CHANGING, 0.0) / 1e3
            parts.local.labelled(run.answer, run.edge_ended - run.edge_began - waited_s)
        return self._decide(run, Moment.AFTER)

    def _edge_broke(self, run: ClassifyRun, error: WeirError) -> None:
        if isinstance(error, _FINAL_FAULTS) and not isinstance(error, ContextTooLong):
            raise error
        self._parts.sink.emit(
            EdgeFailed(self._parts.clock(), run.request.request_id, type(error).__name__, error.message)
        )
        if isinstance(error, Unavailable):
            self._parts.local.failed()
        run.edge_error = error

    async def _upstream(self, run: ClassifyRun, decision: Decision) -> Classified | None:
        """The upstream's label; None when it failed."""
        try:
            answer = await self._escalator.ask(run)
        except Cancelled:
            raise
        except WeirError as error:
            now = self._parts.clock()
            self._parts.sink.emit(EscalationFailed(now, run.request.request_id, type(error).__name__, error.message))
            run.upstream_error = error
            return None
        return upstream_classified(run, answer, decision, self._parts.clock())

    # --- what the router is asked

    def _decide(self, run: ClassifyRun, moment: Moment) -> Decision:
        parts, now = self._parts, self._parts.clock()
        force = self._in_force(run)
        run.confidence = self._confidence(run, force)
        observation = Observation(
            moment=moment,
            confidence=run.confidence if moment is Moment.AFTER else None,
            tokens=1 if run.answer is not None else 0,
            edge_failed=run.edge_error is not None,
            upstream_failed=run.upstream_error is not None,
            deadline_left_s=run.call.deadline.remaining_s(),
        )
        state = state_of(parts.outlook, parts.local, self._settings.limits.max_hops - run.request.hops)
        policy = force.policy(self._settings.policy)
        decision = decide(run.asked, observation, state, policy, now, parts.uniform())
        if run.answer is not None:
            run.threshold = decision.threshold
        parts.sink.emit(Decided(now, run.request.request_id, moment, decision))
        return decision

    def _in_force(self, run: ClassifyRun) -> InForce:
        """The calibrators of what really answered, else of what is served."""
        said = run.answer or run.served
        release, precision = (said.release, said.precision) if said is not None else ("", 0)
        return self._parts.calibrated.in_force(release, precision, None)

    def _confidence(self, run: ClassifyRun, force: InForce) -> float | None:
        answer, calibrator = run.answer, force.end.calibrator
        if answer is None or calibrator is None:
            return None
        return calibrator.of(label_features(self._signals(answer)))

    def _signals(self, answer: Classified) -> LabelSignals:
        own = [score.score for score in answer.scores]
        manifest = self._parts.calibrated.manifest(answer.release)
        if not answer.multi_label or manifest is None:
            return of_one(own, answer.tokens)
        places = {label: index for index, label in enumerate(manifest.labels)}
        thresholds = [manifest.labelling.threshold(places[score.label]) for score in answer.scores]
        return of_many(own, thresholds, answer.tokens)

    # --- the way in

    def _begin(self, request: ClassifyRequest, call: Call) -> ClassifyRun:
        """Checks a request and gives it what it needs on its way. Raises WeirError."""
        settings = self._settings
        check_classify(request, settings.limits)
        call.deadline.check()
        served = self._parts.local.served
        name = settings.model or (served.name if served is not None else "")
        self._way_in.demand_room()
        request = named(request, name)
        return ClassifyRun(request, call, asked(request, settings), self._parts.clock(), served)


def asked(request: ClassifyRequest, settings: CascadeSettings) -> Asked:
    """What routing needs to know of a request to label a text: an answer of one token."""
    return Asked(
        tier=request.constraints.tier.value,
        private=request.context.request_class in settings.private_classes,
        needs=classify_needs(request),
        max_risk=request.constraints.max_risk,
        value=1.0 if request.context.value is None else request.context.value,
        max_tokens=1,
        prompt_bytes=len(request.text.encode()) + len(request.text_pair.encode()),
        expected_tokens=1,
        portable=not request.input_ids,
    )
