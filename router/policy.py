"""`decide`: where a request is answered, asked before, during and after the edge's own attempt.

    first what is wanted (router.wanted), then what is possible (router.possible):

                      possible                         impossible
    GO                ESCALATE                         degraded: RUN, COMMIT/CONTINUE or ANSWER; REFUSE where the
                                                       edge cannot or may not answer
    GO_IF_POSSIBLE    ESCALATE                         as if never wanted: the next rule speaks
    GO_WHEN_DONE      CONTINUE                         COMMIT, degraded: the stream must go on
    STAY, or no wish  RUN, CONTINUE or COMMIT, ANSWER  (not asked); REFUSE where the edge cannot answer

Pure and total: equal inputs give equal decisions, and no input makes it raise. Once an answer is
committed, nothing escalates.
"""

from __future__ import annotations

from router.case import CLOUD_ONLY, Case, make_case
from router.decision import Action, Decision, EdgeView, Moment, Observation, Policy, Reason, Request, State
from router.early_stop import stop_level
from router.possible import obstacle
from router.wanted import WANTED, Urge, Wish


def decide(  # noqa: PLR0917  (the decision's whole input, in the order of docs/routing.md)
    request: Request, observation: Observation, state: State, policy: Policy, now: float, uniform: float
) -> Decision:
    """What to do with `request` at this moment, and why.

    `now` is in seconds on the caller's clock and `uniform` a draw from [0, 1); both are there for
    rules that need them, so that none reaches for a clock or a generator of its own.
    """
    case = make_case(request, observation, state, policy, now=now, uniform=uniform)
    if observation.committed is not None:
        return _hold_to(observation.committed, case)
    for rule in WANTED:
        wish = rule(case)
        decision = None if wish is None else _settle(case, wish)
        if decision is not None:
            return decision
    return _stay(case, Reason.CONFIDENT, firm=False)


def nothing_to_decide(
    request: Request, observation: Observation, edge: EdgeView, stop_levels: tuple[float, ...]
) -> bool:
    """Whether `decide` would say CONTINUE whatever link, upstream, budget and time are like.

    It may say no where that is so, never yes where it is not. Asked at every token, so that a state need not
    be put together for the many that change nothing.
    """
    prefix, confidence = request.commit_prefix, observation.confidence
    return (
        observation.moment is Moment.DURING
        and observation.committed is None
        and not observation.edge_failed
        and (prefix is None or observation.tokens < prefix)
        and request.tier != CLOUD_ONLY
        and request.needs <= edge.capabilities
        and (confidence is None or max(stop_level(stop_levels, observation.tokens), 0.0) <= confidence <= 1)
    )


def _settle(case: Case, wish: Wish) -> Decision | None:
    """The decision that a wish leads to; None when the wish is dropped."""
    if wish.urge is Urge.STAY:
        return _stay(case, wish.reason, firm=True)
    block = obstacle(case)
    if block is None:
        action = Action.CONTINUE if wish.urge is Urge.GO_WHEN_DONE else Action.ESCALATE
        return _decision(case, action, wish.reason)
    if wish.urge is Urge.GO_IF_POSSIBLE:
        return None
    if not case.edge_can_answer:
        return _decision(case, Action.REFUSE, block, wanted=wish.reason)
    return _decision(case, _edge_action(case, settled=True), block, degraded=True, wanted=wish.reason)


def _stay(case: Case, reason: Reason, firm: bool) -> Decision:
    """The edge answers. `firm` when it must, so that waiting for more confidence is pointless."""
    if not case.edge_can_answer:
        wanted = Reason.CLOUD_ONLY if case.request.tier == CLOUD_ONLY else Reason.CAPABILITY
        return _decision(case, Action.REFUSE, reason, wanted=wanted)
    settled = firm or case.commit_crossed or (case.commit_reached and obstacle(case) is not None)
    return _decision(case, _edge_action(case, settled), reason)


def _edge_action(case: Case, settled: bool) -> Action:
    """What answering on the edge means at this moment; `settled` when nothing can change it any more."""
    match case.observation.moment:
        case Moment.BEFORE:
            return Action.RUN
        case Moment.DURING:
            return Action.COMMIT if settled and case.commit_reached else Action.CONTINUE
        case Moment.AFTER:
            return Action.ANSWER


def _hold_to(committed: Decision, case: Case) -> Decision:
    """A committed answer goes on to its end, for the reason it was committed for."""
    if case.observation.edge_failed:
        return _decision(case, Action.REFUSE, Reason.CAPABILITY, wanted=committed.wanted_reason)
    action = Action.ANSWER if case.after else Action.CONTINUE
    return _decision(case, action, committed.reason, committed.degraded, committed.wanted_reason)


def _decision(
    case: Case, action: Action, reason: Reason, degraded: bool = False, wanted: Reason | None = None
) -> Decision:
    return Decision(action, reason, degraded, wanted, case.threshold, case.numbers())
