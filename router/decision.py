"""The words of the decision: what is asked, what is seen, what is known, what is decided.

A decision has two halves. First what is *wanted* (constraints, capability, confidence, budget),
then what is *possible* (breaker, link, deadline). Wanted and impossible is a degraded answer.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Reason(enum.StrEnum):
    """Why; the words of wire.messages.Reason (a contract test holds the two together)."""

    CONFIDENT = "confident"
    LOW_CONFIDENCE = "low_confidence"
    EARLY_STOP = "early_stop"
    PRE_ROUTED = "pre_routed"
    FASTER_UPSTREAM = "faster_upstream"
    PROMISE = "promise"
    EDGE_ONLY = "edge_only"
    CLOUD_ONLY = "cloud_only"
    PRIVACY = "privacy"
    CAPABILITY = "capability"
    DEADLINE = "deadline"
    BUDGET = "budget"
    BREAKER_OPEN = "breaker_open"
    OFFLINE = "offline"
    UPSTREAM_ERROR = "upstream_error"


class Moment(enum.StrEnum):
    """When a decision is asked for."""

    BEFORE = "before"  # the edge has not run
    DURING = "during"  # the edge is decoding
    AFTER = "after"  # the edge has finished, or failed


class Action(enum.StrEnum):
    """What to do now."""

    RUN = "run"  # BEFORE: let the edge answer
    CONTINUE = "continue"  # DURING: decode on, show nothing yet
    COMMIT = "commit"  # DURING: show the edge's tokens; it answers to the end
    ANSWER = "answer"  # AFTER: the edge's answer is the answer
    ESCALATE = "escalate"  # any: ask the upstream
    REFUSE = "refuse"  # any: nobody can answer; `reason` says why


@dataclass(frozen=True, slots=True)
class Request:
    """What one caller asked for, as far as routing needs it.

    `needs` are capability names (wire ModelInfo.capabilities) the answer cannot do without.
    `commit_prefix` is the number of tokens after which a streaming answer may be committed; None
    commits at the end only. `private` requests must not leave the node. `value` is the relative worth
    of a right answer; 1 is usual. `expected_tokens` is the answer's likely length, where there is an
    idea of it; without one, `max_tokens` stands in for it. What is not `portable` is in words of the edge's
    own model (token ids), which no other tier can be asked with.
    """

    tier: str = "auto"  # auto, edge_only or cloud_only
    private: bool = False
    needs: frozenset[str] = frozenset()
    max_risk: float | None = None
    value: float = 1.0
    commit_prefix: int | None = None
    max_tokens: int = 256
    prompt_bytes: int = 0
    expected_tokens: int | None = None
    portable: bool = True


@dataclass(frozen=True, slots=True)
class Observation:
    """What the edge has shown of this request so far.

    `confidence` is calibrated for the commit rule in force at this moment; None before any token.
    `edge_failed` says that the edge's engine could not run it or broke off; `upstream_failed` that
    an escalation of this request was tried and failed, so that the edge's answer is all there is.
    `previous_tokens` is `tokens` as it was when this request was last decided on: the commit point is
    looked at once, when it is crossed, since a second look would not be what was calibrated.
    `committed` is the decision that committed this answer; after it nothing escalates.
    """

    moment: Moment
    confidence: float | None = None
    tokens: int = 0
    edge_failed: bool = False
    upstream_failed: bool = False
    deadline_left_s: float = 30.0
    previous_tokens: int = 0
    committed: Decision | None = None


@dataclass(frozen=True, slots=True)
class LinkView:
    """The network estimate as it stands now. None is unknown, which is neither fine nor dead."""

    rtt_s: float | None = None
    rtt_var_s: float | None = None
    bytes_per_s: float | None = None
    down: bool = False


@dataclass(frozen=True, slots=True)
class UpstreamView:
    """The upstream as far as it is known. Latencies are of its own work, without the link."""

    configured: bool = True
    admits: bool = True  # the breaker lets a request through
    capabilities: frozenset[str] | None = None  # None: not known yet
    first_token_s: float | None = None
    per_token_s: float | None = None
    hops_left: int = 1


@dataclass(frozen=True, slots=True)
class EdgeView:
    """This node's own engine: what it can do and how fast it has been lately."""

    available: bool = True
    capabilities: frozenset[str] = frozenset()
    first_token_s: float | None = None
    per_token_s: float | None = None
    queue_s: float = 0.0


@dataclass(frozen=True, slots=True)
class State:
    """Everything a decision may look at besides the request itself."""

    link: LinkView = LinkView()
    upstream: UpstreamView = UpstreamView()
    edge: EdgeView = EdgeView()
    budget_left: float | None = None  # escalations left in the operator's budget; None: no budget


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules' parameters in force.

    `threshold_end`, `threshold_prefix` and `stop_levels` come from the release's calibration for the precision and
    CPU class in force. `directive_threshold` is an operator's floor. A request of value v > 1 tolerates
    1 / (1 + value_weight·(v - 1)) of the risk that a usual one does. The byte figures are estimates of
    what an escalation moves; they matter on thin links only.
    """

    threshold_end: float = 0.5
    threshold_prefix: float = 0.7
    directive_threshold: float | None = None
    value_weight: float = 1.0
    stop_levels: tuple[float, ...] = ()  # of router.early_stop: under them while decoding, an answer is given up
    prefer_faster_upstream: bool = False
    faster_upstream_factor: float = 0.5  # the upstream must be expected to take less than this share
    deadline_margin_s: float = 0.2
    request_overhead_bytes: int = 600
    draft_bytes_per_token: float = 8.0
    answer_bytes_per_token: float = 40.0


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do and why.

    `degraded` means it wanted to escalate for `wanted_reason` and `reason` stood in the way.
    `numbers` are the figures the decision was made from, for logs and for explaining it.
    """

    action: Action
    reason: Reason
    degraded: bool = False
    wanted_reason: Reason | None = None
    threshold: float | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
