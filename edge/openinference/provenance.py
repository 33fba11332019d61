"""Where answers came from and why, as parameters of a response."""

from __future__ import annotations

from collections.abc import Sequence

from wire.classification import Classified
from wire.messages import Final
from wire.openinference.messages import Parameter


def shared(answers: Sequence[Final] | Sequence[Classified]) -> dict[str, Parameter]:
    """What holds of every answer: of one, all of it. What is not known is left out."""
    told = [_told(answer) for answer in answers]
    return {name: value for name, value in told[0].items() if all(other.get(name) == value for other in told)}


def _told(answer: Final | Classified) -> dict[str, Parameter]:
    known: dict[str, Parameter | None] = {
        "weir_tier": answer.tier.value,
        "weir_reason": answer.reason.value,
        "weir_degraded": answer.degraded,
        "weir_wanted_reason": answer.wanted_reason.value if answer.wanted_reason else None,
        "weir_release": answer.release,
        "weir_weight_digest": answer.weight_digest,
        "weir_precision": answer.precision,
        "weir_confidence": answer.confidence,
        "weir_threshold": answer.threshold,
        "weir_edge_tokens_spent": answer.edge_tokens_spent if isinstance(answer, Final) else None,
        "weir_hops": answer.hops,
        "weir_node": answer.node,
        "weir_request_id": answer.request_id,
    }
    return {name: value for name, value in known.items() if value is not None and value != ""}
