"""What the router is asked about a request: the request, what was seen of it, and the state of the world.

The confidence is that of the commit rule in force at the moment: calibrated for the commit point
while an answer is decoded, for finished answers at its end. Which calibrators count is settled by
the weights that answer, which may be others by the time a long answer ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from edge.events import Sink
from edge.ports import Calibrations, Clock, Local, Outlook, Uniform
from edge.run import Run, router_signals
from router.calibration import InForce
from router.decision import Action, Decision, Moment, Observation, Policy, State
from router.decision import Request as Asked
from router.events import Decided
from router.policy import decide, nothing_to_decide
from wire.capabilities import in_own_words, needs
from wire.messages import GenerateRequest
from wire.service import InferenceService
from wire.validate import RequestLimits

_CHOICE = "choice"  # the form of answers that are one of given options


@dataclass(frozen=True, slots=True)
class CascadeSettings:
    """What one node's cascade goes by."""

    node: str = "edge"
    model: str = ""  # the served name; empty: whatever the engine serves
    limits: RequestLimits = field(default_factory=RequestLimits)
    policy: Policy = field(default_factory=Policy)
    commit_rule: str = "end"
    max_output_tokens: int = 512
    max_requests: int = 256
    private_classes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CascadeParts:
    """What it is made of."""

    engine: InferenceService
    local: Local
    upstream: InferenceService
    outlook: Outlook
    calibrations: Calibrations
    sink: Sink
    clock: Clock
    uniform: Uniform


def asked(request: GenerateRequest, prefix: int | None, settings: CascadeSettings) -> Asked:
    """What routing needs to know of a request."""
    return Asked(
        tier=request.constraints.tier.value,
        private=request.context.request_class in settings.private_classes,
        needs=needs(request),
        max_risk=request.constraints.max_risk,
        value=1.0 if request.context.value is None else request.context.value,
        commit_prefix=prefix,
        max_tokens=min(request.sampling.max_tokens or settings.max_output_tokens, settings.max_output_tokens),
        prompt_bytes=sum(len(m.content.encode()) for m in request.messages) + len(request.prompt.encode()),
    )


def state_of(outlook: Outlook, local: Local, hops_left: int) -> State:
    """The state of the world, as the router sees it now."""
    return State(outlook.link(), outlook.view(hops_left), local.view(), outlook.budget_left())


class Judge:
    """Asks `router.policy.decide` on behalf of one node."""

    def __init__(self, parts: CascadeParts, settings: CascadeSettings) -> None:
        self._parts, self._settings = parts, settings

    def during(self, run: Run) -> Decision | None:
        """The decision while the edge decodes; None, at little cost, where it goes on and nothing is shown yet."""
        force = self._in_force(run, Moment.DURING)
        observation = self._observe(run, Moment.DURING, force)
        if nothing_to_decide(run.asked, observation, self._parts.local.view(), force.prefix.stop_levels):
            run.previous_tokens = observation.tokens
            return None
        return self._decide(run, force, observation)

    def decide(self, run: Run, moment: Moment) -> Decision:
        """Asks the router, notes what it was told about the answer, and tells the sink."""
        force = self._in_force(run, moment)
        return self._decide(run, force, self._observe(run, moment, force))

    def _decide(self, run: Run, force: InForce, observation: Observation) -> Decision:
        parts, now, moment = self._parts, self._parts.clock(), observation.moment
        hops_left = self._settings.limits.max_hops - run.request.hops
        state = state_of(parts.outlook, parts.local, hops_left)
        policy = force.policy(self._settings.policy)
        if in_own_words(run.request):
            run.asked = replace(run.asked, portable=self._portable(run, state))
        decision = decide(run.asked, observation, state, policy, now, parts.uniform())
        run.previous_tokens = observation.tokens
        if run.committed is None and (observation.confidence is not None or run.edge_confidence is None):
            run.edge_confidence, run.threshold = observation.confidence, decision.threshold
        if moment is not Moment.DURING or decision.action is not Action.CONTINUE:
            parts.sink.emit(Decided(now, run.request.request_id, moment, decision))
        return decision

    def _portable(self, run: Run, state: State) -> bool:
        """Whether the upstream reads token ids as the edge's model does, by what both last said of themselves."""
        if not state.upstream.configured:
            return True  # nobody there to read them otherwise: what stands in the way is that
        theirs = self._parts.outlook.model(run.request.model)
        return run.served is not None and run.served.reads_as(theirs)

    def _in_force(self, run: Run, moment: Moment) -> InForce:
        """The calibrators of what really answers: what the finished answer says, else what was served."""
        final = run.attempt.final if run.attempt is not None else None
        release = final.release if final is not None else run.served.release if run.served is not None else ""
        precision = final.precision if final is not None else run.served.precision if run.served is not None else 0
        form = run.request.response_format
        if form is not None and form.type == _CHOICE:
            return self._parts.calibrations.for_choices(release, precision)
        prefix = run.asked.commit_prefix if moment is Moment.DURING else None
        return self._parts.calibrations.in_force(release, precision, prefix)

    def _observe(self, run: Run, moment: Moment, force: InForce) -> Observation:
        attempt = run.attempt
        calibrator = (force.prefix if moment is Moment.DURING else force.end).calibrator
        confidence = None
        if (
            moment is not Moment.BEFORE
            and attempt is not None
            and attempt.signals is not None
            and calibrator is not None
        ):
            confidence = calibrator.confidence(router_signals(attempt.signals))
        return Observation(
            moment=moment,
            confidence=confidence,
            tokens=attempt.tokens if attempt is not None and moment is not Moment.BEFORE else 0,
            edge_failed=run.edge_error is not None,
            upstream_failed=run.upstream_error is not None,
            deadline_left_s=run.call.deadline.remaining_s(),
            previous_tokens=run.previous_tokens,
            committed=run.committed,
        )
