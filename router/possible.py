"""Second half of a decision: can an escalation be had?

Each obstacle is one function from a case to the reason that stands in the way, or None. The first
in OBSTACLES's order is the one that is told. Unknown is never an obstacle: what is not known to
fail is tried, and the breaker and the estimates learn from it.

To add one: write the function, list it in OBSTACLES, test it in tests/unit/router/test_possible.py.
"""

from __future__ import annotations

from collections.abc import Callable

from router.case import Case
from router.decision import Reason
from router.latency import known

Obstacle = Callable[[Case], Reason | None]


def not_portable(case: Case) -> Reason | None:
    """The request is in words that the edge's own model alone can read. No other time and no other link helps."""
    return None if case.request.portable else Reason.CAPABILITY


def upstream_just_failed(case: Case) -> Reason | None:
    """This request's escalation was tried already and failed: not again."""
    return Reason.UPSTREAM_ERROR if case.observation.upstream_failed else None


def no_upstream(case: Case) -> Reason | None:
    """The node has no upstream."""
    return None if case.state.upstream.configured else Reason.OFFLINE


def breaker_is_open(case: Case) -> Reason | None:
    """The upstream failed lately and is left alone for a while."""
    return None if case.state.upstream.admits else Reason.BREAKER_OPEN


def link_is_down(case: Case) -> Reason | None:
    """The network is known to be down. An unknown network is not."""
    return Reason.OFFLINE if case.state.link.down else None


def no_hops_left(case: Case) -> Reason | None:
    """The request has passed as many nodes as it may: there is a loop, or a chain too long."""
    return None if case.state.upstream.hops_left > 0 else Reason.BUDGET


def upstream_lacks_capability(case: Case) -> Reason | None:
    """The upstream is known to lack something that the answer cannot do without."""
    capabilities = case.state.upstream.capabilities
    lacking = capabilities is not None and not case.request.needs <= capabilities
    return Reason.CAPABILITY if lacking else None


def budget_is_spent(case: Case) -> Reason | None:
    """The operator's budget has no whole escalation left. It binds cloud_only requests too."""
    left = case.state.budget_left
    return None if left is None or left >= 1 else Reason.BUDGET


def deadline_is_too_near(case: Case) -> Reason | None:
    """What is known of link, upstream and the answer's length takes longer than the request has left, less a margin.

    An unknown length is not taken for the longest: an upstream that is refused for what it might take would
    never be measured again.
    """
    margin_s = known(case.policy.deadline_margin_s) or 0.0
    fits = case.upstream_least.seconds + margin_s <= case.deadline_left_s
    return None if fits else Reason.DEADLINE


OBSTACLES: tuple[Obstacle, ...] = (
    not_portable,
    upstream_just_failed,
    no_upstream,
    breaker_is_open,
    link_is_down,
    no_hops_left,
    upstream_lacks_capability,
    budget_is_spent,
    deadline_is_too_near,
)


def obstacle(case: Case) -> Reason | None:
    """What stands between this request and the upstream; None when nothing does."""
    for rule in OBSTACLES:
        reason = rule(case)
        if reason is not None:
            return reason
    return None
