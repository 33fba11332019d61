"""The Final of an answer: where all of it came from, with the time of every stage.

Timings (ms): `edge_queue`, `edge_prefill`, `edge_decode` and whatever else the engine measured, each
under `edge_`; `edge_total` as this node saw it; `upstream_first` and `upstream_total` around an
escalation; the cloud's own stages under `cloud_` (or under its own names); `total`. Where the upstream
is a node, all that it told stands under `upstream.`, once for each node on the way: what two nodes call
by one name stays apart.

Who answered says so: tier, node, release, weights and precision are always those of who wrote the text,
however many nodes passed it on. Where a node answered by itself, so are reason, confidence and
threshold, for they speak of that answer. The cloud has no confidence in its own: there the node that was
asked says why it passed the request on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edge.run import Attempt, Run
from router.decision import Decision
from wire.messages import Committed, Delta, Final, Reason, Tier

_ONLY_NODES = frozenset(("edge_total", "upstream_total"))
_OWN_PREFIXES = ("edge_", "cloud_", "gateway_", "host_", "upstream_", "rank_", "engine_")


def edge_committed(run: Run, attempt: Attempt, decision: Decision) -> Committed:
    """Said once, before anything of the edge's answer is shown."""
    release = attempt.final.release if attempt.final is not None else attempt.release
    return Committed(Tier.EDGE, wire_reason(decision.reason), run.request.request_id, release)


def upstream_committed(run: Run, event: Delta | Final, decision: Decision) -> Committed:
    """Said once, before anything of the upstream's answer is shown; `event` is the first of it."""
    release = event.release if isinstance(event, Final) else run.upstream_release
    said = event.reason if isinstance(event, Final) else run.upstream_reason
    reason = said if run.upstream_tier is Tier.EDGE and said is not None else wire_reason(decision.reason)
    return Committed(run.upstream_tier, reason, run.request.request_id, release)


def edge_final(run: Run, final: Final, decision: Decision, now: float) -> Final:
    """The Final of an answer the edge gave. A draft from a node below is not used here, and that is said."""
    offered = run.request.draft
    return replace(
        final,
        tier=Tier.EDGE,
        reason=wire_reason(decision.reason),
        degraded=decision.degraded,
        wanted_reason=None if decision.wanted_reason is None else wire_reason(decision.wanted_reason),
        confidence=run.edge_confidence,
        threshold=run.threshold,
        timings_ms=_timings(run, now) | _prefixed(final, "edge_"),
        draft_tokens_offered=0 if offered is None else len(offered.token_ids),
        draft_status="" if offered is None else "unsupported",
        edge_tokens_spent=final.edge_tokens_spent + run.spent,
        hops=run.request.hops,
        request_id=run.request.request_id,
        signals=final.signals if run.request.return_signals else None,
    )


def upstream_final(run: Run, final: Final, decision: Decision, now: float) -> Final:
    """The Final of an answer the upstream gave. What a node says of an answer of its own stands."""
    own = final.tier is Tier.EDGE
    edge = run.answer
    timings = _timings(run, now) | (nested(final.timings_ms) if _from_node(final) else _prefixed(final, "cloud_"))
    if edge is not None and edge.final is not None:
        timings |= _prefixed(edge.final, "edge_")
    return replace(
        final,
        reason=final.reason if own else wire_reason(decision.reason),
        confidence=final.confidence if own or run.edge_confidence is None else run.edge_confidence,
        threshold=final.threshold if own or run.threshold is None else run.threshold,
        timings_ms=timings,
        draft_tokens_offered=run.draft_offered,
        draft_status=run.draft_status or final.draft_status,
        # What edges decoded for this request and nobody reads, here and further up.
        edge_tokens_spent=final.edge_tokens_spent + run.spent + (0 if run.attempt is None else run.attempt.tokens),
        hops=max(final.hops, run.request.hops + 1),
        request_id=run.request.request_id,
        signals=final.signals if run.request.return_signals else None,
    )


def wire_reason(reason: object) -> Reason:
    """The wire's word for a router's reason."""
    return Reason(str(reason))


def _timings(run: Run, now: float) -> dict[str, float]:
    timings = {"total": (now - run.began) * 1e3}
    attempt = run.attempt
    if attempt is not None:
        timings["edge_total"] = ((attempt.ended_at or now) - attempt.began) * 1e3
        if attempt.first_at is not None:
            timings["edge_first"] = (attempt.first_at - attempt.began) * 1e3
    if run.upstream_began is not None:
        timings["upstream_total"] = ((run.upstream_ended_at or now) - run.upstream_began) * 1e3
        if run.upstream_first_at is not None:
            timings["upstream_first"] = (run.upstream_first_at - run.upstream_began) * 1e3
    return timings


def _from_node(final: Final) -> bool:
    """Whether the Final is of a node: only nodes measure around an engine or an upstream."""
    return final.tier is Tier.EDGE or from_node(final.timings_ms)


def from_node(timings_ms: Mapping[str, float]) -> bool:
    """Whether what was measured tells of a node, whoever answered behind it."""
    return not _ONLY_NODES.isdisjoint(timings_ms)


def nested(timings_ms: Mapping[str, float]) -> dict[str, float]:
    """All that a node above measured."""
    return {f"upstream.{name}": ms for name, ms in timings_ms.items()}


def _prefixed(final: Final, prefix: str) -> dict[str, float]:
    """A tier's own stages, told apart from ours."""
    return prefixed(final.timings_ms, prefix)


def prefixed(timings_ms: Mapping[str, float], prefix: str) -> dict[str, float]:
    """A tier's own stages under a prefix, told apart from ours."""
    named = {name if name.startswith(_OWN_PREFIXES) else f"{prefix}{name}": ms for name, ms in timings_ms.items()}
    return {name: ms for name, ms in named.items() if name not in ("edge_total", "upstream_total", "upstream_first")}
