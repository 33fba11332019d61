"""A tier in memory that labels texts: answers from a table, fails on order, holds what it was asked."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field

from wire.classification import Classified, ClassifyRequest, LabelScore
from wire.description import Description, ModelInfo
from wire.errors import WeirError
from wire.messages import Reason, Tier
from wire.service import Call

LABELS = ("parcel", "refund", "room")
EDGE_MODEL = ModelInfo(
    "intents", "intents@1.0.0+e", tasks=("classify",), capabilities=("classify", "logits"), precision=8, labels=LABELS
)
CLOUD_MODEL = ModelInfo(
    "big", "big@1.0.0+c", tasks=("classify",), capabilities=("classify", "logits", "text_pair"), labels=LABELS
)


@dataclass
class FakeClassifies:
    """Satisfies Classifies, and InferenceService's describe. The first of LABELS gets `share`, the others the rest."""

    model: ModelInfo = EDGE_MODEL
    tier: Tier = Tier.EDGE
    node: str = "engine"
    share: float = 0.8
    fails: list[WeirError] = field(default_factory=list)  # one for each call, until there are none
    broken: WeirError | None = None  # for every call
    takes_s: float = 0.0
    described: bool = True
    requests: list[ClassifyRequest] = field(default_factory=list)
    running: int = 0

    async def classify(self, request: ClassifyRequest, call: Call) -> Classified:
        self.requests.append(request)
        self.running += 1
        try:
            await asyncio.sleep(self.takes_s)
            if self.fails:
                raise self.fails.pop(0)
            if self.broken is not None:
                raise self.broken
        finally:
            self.running -= 1
        rest = (1 - self.share) / (len(LABELS) - 1)
        shares = (self.share, *(rest for _ in LABELS[1:]))
        return Classified(
            label=LABELS[0],
            tier=self.tier,
            scores=tuple(LabelScore(label, share) for label, share in zip(LABELS, shares, strict=True)),
            logits=tuple(math.log(share) for share in shares) if request.return_logits else (),
            reason=Reason.EDGE_ONLY,
            release=self.model.release,
            precision=self.model.precision,
            tokens=5,
            timings_ms={"tokenize": 1.0, "queue": 2.0, "classify": 3.0},
            hops=request.hops,
            request_id=request.request_id,
            node=self.node,
        )

    async def describe(self, call: Call, probe_bytes: int = 0) -> Description:
        return Description(self.node, self.tier, models=(self.model,) if self.described else ())
