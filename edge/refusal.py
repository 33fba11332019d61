"""The error behind a refusal: nobody could answer, and this is what stood in the way."""

from __future__ import annotations

import re
from typing import Protocol

from router.decision import Decision, Reason, UpstreamView
from router.decision import Request as Asked
from wire.description import ModelInfo
from wire.errors import (
    CannotConstrain,
    Conflict,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    TooManyHops,
    Unavailable,
    WeirError,
)
from wire.service import Call

_WAYS: dict[Reason, str] = {
    Reason.OFFLINE: "the upstream cannot be reached",
    Reason.BREAKER_OPEN: "the upstream failed lately and is left alone for a moment",
    Reason.UPSTREAM_ERROR: "the upstream failed",
    Reason.EDGE_ONLY: "the request allows the edge alone",
    Reason.PRIVACY: "the request must not leave this node",
    Reason.CAPABILITY: "no tier in reach can serve it",
}

_NO_UPSTREAM = "this node has no upstream ([edge] upstream)"
_OWN_WORDS = "it names token ids (logit_bias, input_ids), which no other tier is known to read as the edge's model does"
_ADVICE = re.compile(r"[;,] try again( later| soon| in a moment)?$")
_PASSING = (Reason.BREAKER_OPEN, Reason.UPSTREAM_ERROR)  # later the upstream may take what it cannot take now


class Refused(Protocol):
    """What is looked at of a request that nobody answers, whether it was for text or for a label."""

    call: Call
    asked: Asked
    served: ModelInfo | None
    edge_error: WeirError | None
    upstream_error: WeirError | None


def refusal(run: Refused, decision: Decision, upstream: UpstreamView) -> WeirError:
    """What the caller is told. A fault of the request itself comes before everything else."""
    own = None if isinstance(run.edge_error, CannotConstrain) else run.edge_error
    for error in (own, run.upstream_error):
        if isinstance(error, (InvalidRequest, Conflict, TooManyHops)):
            return error
    if decision.reason is Reason.DEADLINE or run.call.deadline.expired:
        return DeadlineExceeded("too little time is left to answer; allow more, or ask for fewer tokens")
    if decision.reason is Reason.BUDGET:
        return _no_budget(upstream.hops_left)
    if (told := _told_by_the_edge(run.edge_error, decision, _why(run, decision, upstream))) is not None:
        return told
    missing = run.asked.needs - _capabilities(run)
    if run.edge_error is None and run.upstream_error is None and missing and run.served is not None:
        lacking = [f"no tier in reach can serve what is asked: {', '.join(sorted(missing))}"]
        if not upstream.configured:
            lacking.append(_NO_UPSTREAM)
        elif decision.reason is Reason.CAPABILITY and not run.asked.portable:
            lacking.append(_OWN_WORDS)
        return InvalidRequest("; ".join(lacking))
    return _unavailable(run, decision, upstream)


def _unavailable(run: Refused, decision: Decision, upstream: UpstreamView) -> WeirError:
    words = [_why(run, decision, upstream)]
    if run.asked.tier == "cloud_only" and words[0] == _NO_UPSTREAM:
        return Unavailable(f"{words[0]}, and the request allows no other tier (cloud_only); set one, or allow the edge")
    if run.asked.tier == "cloud_only" and decision.reason is Reason.PRIVACY:
        return Unavailable(f"{words[0]}, and it allows no tier but the cloud (cloud_only); give one of them up")
    if run.edge_error is not None:
        words.append(f"the edge: {bare(run.edge_error)}")
    elif decision.reason in (Reason.EDGE_ONLY, Reason.PRIVACY) or run.asked.tier != "cloud_only":
        words.append("the edge's engine is not available")
    if run.upstream_error is not None:
        said = bare(run.upstream_error)
        words.append(said if said.startswith("the upstream") else f"the upstream: {said}")
    return Unavailable("; ".join(words) + "; try again")


def bare(error: WeirError) -> str:
    """An error's words as a part of others, which say themselves what to do."""
    return _ADVICE.sub("", error.message)


def _why(run: Refused, decision: Decision, upstream: UpstreamView) -> str:
    if decision.reason is Reason.CAPABILITY and not run.asked.portable:
        return _OWN_WORDS
    if decision.reason is Reason.OFFLINE and not upstream.configured:
        return _NO_UPSTREAM
    return _WAYS.get(decision.reason, str(decision.reason))


def _told_by_the_edge(error: WeirError | None, decision: Decision, why: str) -> WeirError | None:
    """The engine's own words, where they say best what to do."""
    if isinstance(error, CannotConstrain) and decision.reason not in _PASSING:
        return CannotConstrain(f"{error.message}; and no other tier can be asked: {why}")
    return error if isinstance(error, Overloaded) else None


def _no_budget(hops_left: int) -> WeirError:
    if hops_left > 0:
        return Overloaded("no escalation is left in this node's budget; try again in a minute")
    return TooManyHops(
        "the request passed as many nodes as it may (max_hops) and this one cannot answer it by itself; "
        "check that no node is its own upstream, or raise max_hops for a longer chain"
    )


def _capabilities(run: Refused) -> frozenset[str]:
    return frozenset(run.served.capabilities) if run.served is not None else frozenset()
