"""Where answers came from, as the `weir` object, response headers and `usage` say it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wire.messages import Committed, Final, GenerateEvent, Usage

Json = dict[str, Any]
_LONGEST_FIELD = 2048


def provenance(final: Final) -> Json:
    """Where one answer came from and why. Absent figures are null."""
    return {
        "tier": final.tier.value,
        "reason": final.reason.value,
        "degraded": final.degraded,
        "wanted_reason": final.wanted_reason.value if final.wanted_reason else None,
        "release": final.release,
        "weight_digest": final.weight_digest,
        "precision": final.precision,
        "weight_format": final.weight_format,
        "confidence": final.confidence,
        "threshold": final.threshold,
        "audited": final.audited,
        "draft": {
            "offered": final.draft_tokens_offered,
            "accepted": final.draft_tokens_accepted,
            "status": final.draft_status,
        },
        "edge_tokens_spent": final.edge_tokens_spent,
        "hops": final.hops,
        "node": final.node,
        "request_id": final.request_id,
        "timings_ms": {name: round(ms, 3) for name, ms in final.timings_ms.items()},
    }


def all_provenance(finals: Sequence[Final]) -> Json:
    """The `weir` object of a body: one answer's own, or of several each in turn."""
    return provenance(finals[0]) if len(finals) == 1 else {"choices": [provenance(final) for final in finals]}


def usage(tokens: Usage) -> Json:
    return {
        "prompt_tokens": tokens.prompt_tokens,
        "completion_tokens": tokens.completion_tokens,
        "total_tokens": tokens.prompt_tokens + tokens.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": tokens.cached_tokens},
    }


def headers(settled: Sequence[GenerateEvent]) -> Mapping[str, str]:
    """Provenance as response headers; several answers that differ give a list.

    The release is left out where nobody said it yet.
    """
    known = [event for event in settled if isinstance(event, Committed | Final)]
    told = {
        "x-weir-tier": [event.tier.value for event in known],
        "x-weir-reason": [event.reason.value for event in known],
        "x-weir-release": [event.release for event in known],
    }
    return {name: field(", ".join(dict.fromkeys(filter(None, words)))) for name, words in told.items() if any(words)}


def field(value: str) -> str:
    """A header's value: what another tier says of itself may be anything, and clients refuse long headers."""
    plain = "".join(character if " " <= character <= "~" else "?" for character in value[:_LONGEST_FIELD])
    return plain.strip()
