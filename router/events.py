"""What the router tells: frozen events to a sink. Metrics and logs are sinks, and live elsewhere.

Must not know: who listens. A sink must neither block nor raise.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from router.breaker import BreakerState
from router.decision import Decision, LinkView, Moment
from router.precision import PrecisionPlan


class LinkCondition(enum.StrEnum):
    """The link in one word. `partly_known` lacks the RTT or the throughput."""

    UNKNOWN = "unknown"
    PARTLY_KNOWN = "partly_known"
    KNOWN = "known"
    DOWN = "down"


def link_condition(view: LinkView) -> LinkCondition:
    """The word for a view."""
    if view.down:
        return LinkCondition.DOWN
    missing = (view.rtt_s is None) + (view.bytes_per_s is None)
    return (LinkCondition.KNOWN, LinkCondition.PARTLY_KNOWN, LinkCondition.UNKNOWN)[missing]


@dataclass(frozen=True, slots=True)
class Decided:
    """A request was decided on. `at` is the `now` it was decided with, here and below."""

    at: float
    request_id: str
    moment: Moment
    decision: Decision


@dataclass(frozen=True, slots=True)
class PrecisionChanged:
    """Another precision is planned; `plan` says why."""

    at: float
    before: int
    plan: PrecisionPlan


@dataclass(frozen=True, slots=True)
class ThresholdsChanged:
    """Other thresholds are in force, since a precision, a release or a directive changed."""

    at: float
    precision: int
    threshold_end: float
    threshold_prefix: float


@dataclass(frozen=True, slots=True)
class BreakerChanged:
    """The breaker before an upstream changed its state."""

    at: float
    upstream: str
    before: BreakerState
    after: BreakerState
    cooldown_s: float


@dataclass(frozen=True, slots=True)
class LinkChanged:
    """The link changed its condition."""

    at: float
    before: LinkCondition
    after: LinkCondition
    view: LinkView


RouterEvent = Decided | PrecisionChanged | ThresholdsChanged | BreakerChanged | LinkChanged
