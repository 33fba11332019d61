"""What travels for Classify, and who answers it. See wire.messages for the words both share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from wire.messages import Constraints, Context, Reason, Tier
from wire.service import Call

MOST_IDS = 1 << 16  # of one row; no model takes as many, and counting them must cost nothing


@dataclass(frozen=True, slots=True)
class ClassifyRequest:
    """One text, or pair of texts, to label. `top_labels` bounds the scores told; 0 tells all.

    In place of `text`, `input_ids` are tokens of the model's own tokenizer, taken as they are, and `token_type_ids`
    says of each which text it is of (0 or 1; empty: all of the first). Nobody but that model can read them.
    """

    model: str = ""
    text: str = ""
    text_pair: str = ""
    constraints: Constraints = field(default_factory=Constraints)
    context: Context = field(default_factory=Context)
    hops: int = 0
    request_id: str = ""
    idempotency_key: str = ""
    top_labels: int = 0
    return_logits: bool = False
    input_ids: tuple[int, ...] = ()
    token_type_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LabelScore:
    """A label and its probability: over all labels, or its own where labels do not exclude each other."""

    label: str
    score: float


@dataclass(frozen=True, slots=True)
class Classified:
    """A text's label and where it came from. `scores` likeliest first; `labels` are those that hold (multi-label)."""

    label: str
    tier: Tier
    scores: tuple[LabelScore, ...] = ()
    labels: tuple[str, ...] = ()
    multi_label: bool = False
    logits: tuple[float, ...] = ()
    confidence: float | None = None
    threshold: float | None = None
    reason: Reason = Reason.CONFIDENT
    degraded: bool = False
    wanted_reason: Reason | None = None
    release: str = ""
    weight_digest: str = ""
    precision: int = 0
    weight_format: str = ""
    tokens: int = 0
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    hops: int = 0
    request_id: str = ""
    node: str = ""


class Classifies(Protocol):
    """Labels texts. What an edge node, an engine process, a gRPC client and a test double may be beside the rest."""

    async def classify(self, request: ClassifyRequest, call: Call) -> Classified:
        """The text's label. Raises WeirError; a caller that leaves gives up its place."""
        ...
