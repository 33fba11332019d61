"""First half of a decision: what does this request want?

Each rule is one function from a case to a wish, or None when it has nothing to say. The first wish
in WANTED's order counts; where no rule speaks, nothing is held against the edge. A rule never asks
whether its wish can be had: that is router.possible's half.

To add a rule: write the function, list it in WANTED, test it in tests/unit/router/test_wanted.py.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from router.case import CLOUD_ONLY, EDGE_ONLY, Case
from router.decision import Reason
from router.early_stop import stop_level
from router.latency import edge_forecast


class Urge(enum.StrEnum):
    """Where a request wants to go, and how much."""

    STAY = "stay"  # the edge answers, whatever else there is to say
    GO = "go"  # escalate; where that is impossible, the edge's answer is degraded
    GO_IF_POSSIBLE = "go_if_possible"  # escalate, or forget that it was wanted
    GO_WHEN_DONE = "go_when_done"  # show nothing yet and look again at the end; commit where escalating is impossible


@dataclass(frozen=True, slots=True)
class Wish:
    """What a rule wants, and why."""

    urge: Urge
    reason: Reason


Rule = Callable[[Case], Wish | None]


def private_stays(case: Case) -> Wish | None:
    """A private request never leaves the node."""
    return Wish(Urge.STAY, Reason.PRIVACY) if case.request.private else None


def edge_only_stays(case: Case) -> Wish | None:
    """The caller allows the edge alone."""
    return Wish(Urge.STAY, Reason.EDGE_ONLY) if case.request.tier == EDGE_ONLY else None


def cloud_only_goes(case: Case) -> Wish | None:
    """The caller allows the cloud alone."""
    return Wish(Urge.GO, Reason.CLOUD_ONLY) if case.request.tier == CLOUD_ONLY else None


def edge_broke_off(case: Case) -> Wish | None:
    """The edge's engine could not run the request, or died while it did."""
    return Wish(Urge.GO, Reason.CAPABILITY) if case.observation.edge_failed else None


def edge_lacks_capability(case: Case) -> Wish | None:
    """The answer cannot do without something that the edge's model does not have."""
    missing = case.request.needs - case.state.edge.capabilities
    return Wish(Urge.GO, Reason.CAPABILITY) if missing else None


def edge_is_down(case: Case) -> Wish | None:
    """The edge's engine is not there: do not make the request wait for it."""
    return Wish(Urge.GO, Reason.PRE_ROUTED) if case.before and not case.state.edge.available else None


def edge_misses_deadline(case: Case) -> Wish | None:
    """The edge will surely not finish in time.

    Surely: without an idea of the answer's length, only its first token is held against the edge.
    """
    if not case.before:
        return None
    least = edge_forecast(case.state.edge, case.request.expected_tokens or 1)
    return Wish(Urge.GO, Reason.PRE_ROUTED) if least.seconds > max(case.deadline_left_s, 0.0) else None


def upstream_is_faster(case: Case) -> Wish | None:
    """The operator prefers speed, and the upstream is expected to be clearly faster, link included."""
    if not (case.before and case.policy.prefer_faster_upstream and case.edge.complete and case.upstream.complete):
        return None
    if case.upstream.seconds < case.policy.faster_upstream_factor * case.edge.seconds:
        return Wish(Urge.GO_IF_POSSIBLE, Reason.FASTER_UPSTREAM)
    return None


def hopeless_so_far(case: Case) -> Wish | None:
    """While decoding: the confidence is so low that the rest of the answer will not repair it, by the fitted levels."""
    if not case.during or case.observation.confidence is None:  # not measured yet, which is no sign of anything
        return None
    level = stop_level(case.policy.stop_levels, case.observation.tokens)
    # An invalid confidence counts as none at all. What would do as it stands is never given up.
    hopeless = (case.confidence or 0.0) < min(level, case.threshold)
    return Wish(Urge.GO_IF_POSSIBLE, Reason.EARLY_STOP) if hopeless else None


def unsure_at_commit_point(case: Case) -> Wish | None:
    """Enough tokens to show, but not the confidence: decode to the end unseen and look again there."""
    unsure = case.commit_reached and not case.confident
    return Wish(Urge.GO_WHEN_DONE, Reason.LOW_CONFIDENCE) if unsure else None


def unsure_at_end(case: Case) -> Wish | None:
    """The finished answer's confidence is below the threshold."""
    return Wish(Urge.GO, Reason.LOW_CONFIDENCE) if case.after and not case.confident else None


WANTED: tuple[Rule, ...] = (
    private_stays,
    edge_only_stays,
    cloud_only_goes,
    edge_broke_off,
    edge_lacks_capability,
    edge_is_down,
    edge_misses_deadline,
    upstream_is_faster,
    hopeless_so_far,
    unsure_at_commit_point,
    unsure_at_end,
)
