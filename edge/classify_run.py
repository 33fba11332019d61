"""One text on its way to its label: what was asked, tried and found so far, and the answer's provenance.

Plain state, changed by edge.classify_cascade alone. Timings as in edge.provenance: the edge's own stages under
`edge_`, an escalation under `upstream_total`, what a node above told under `upstream.`, the cloud's stages under
`cloud_`, and `total`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edge.provenance import from_node, nested, prefixed, wire_reason
from router.decision import Decision
from router.decision import Request as Asked
from wire.classification import Classified, ClassifyRequest
from wire.description import ModelInfo
from wire.errors import WeirError
from wire.messages import Tier
from wire.service import Call


@dataclass(slots=True)
class ClassifyRun:
    """The state of one request. Times are of the node's clock, in seconds."""

    request: ClassifyRequest
    call: Call
    asked: Asked
    began: float
    served: ModelInfo | None
    answer: Classified | None = None  # the edge's
    edge_began: float | None = None
    edge_ended: float | None = None
    edge_error: WeirError | None = None
    upstream_error: WeirError | None = None
    upstream_began: float | None = None
    upstream_ended: float | None = None
    confidence: float | None = None
    threshold: float | None = None


def edge_classified(run: ClassifyRun, answer: Classified, decision: Decision, now: float, node: str) -> Classified:
    """The edge's answer, with no more than was asked for."""
    return replace(
        answer,
        tier=Tier.EDGE,
        scores=answer.scores[: run.request.top_labels or None],
        confidence=run.confidence,
        threshold=run.threshold,
        reason=wire_reason(decision.reason),
        degraded=decision.degraded,
        wanted_reason=None if decision.wanted_reason is None else wire_reason(decision.wanted_reason),
        timings_ms=_timings(run, now) | prefixed(answer.timings_ms, "edge_"),
        hops=run.request.hops,
        request_id=run.request.request_id,
        node=node,
    )


def upstream_classified(run: ClassifyRun, answer: Classified, decision: Decision, now: float) -> Classified:
    """The upstream's answer. What a node says of an answer of its own stands."""
    own = answer.tier is Tier.EDGE
    told = answer.timings_ms
    timings = _timings(run, now) | (nested(told) if own or from_node(told) else prefixed(told, "cloud_"))
    if run.answer is not None:
        timings |= prefixed(run.answer.timings_ms, "edge_")
    return replace(
        answer,
        reason=answer.reason if own else wire_reason(decision.reason),
        confidence=answer.confidence if own or run.confidence is None else run.confidence,
        threshold=answer.threshold if own or run.threshold is None else run.threshold,
        timings_ms=timings,
        hops=max(answer.hops, run.request.hops + 1),
        request_id=run.request.request_id,
    )


def _timings(run: ClassifyRun, now: float) -> dict[str, float]:
    timings = {"total": (now - run.began) * 1e3}
    if run.edge_began is not None:
        timings["edge_total"] = ((run.edge_ended or now) - run.edge_began) * 1e3
    if run.upstream_began is not None:
        timings["upstream_total"] = ((run.upstream_ended or now) - run.upstream_began) * 1e3
    return timings
