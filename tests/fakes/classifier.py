"""A Classifies in memory: labels a text, or ids, by its length, keeps what it was asked, fails and waits on order."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from wire.classification import Classified, ClassifyRequest, LabelScore
from wire.description import ModelInfo
from wire.errors import WeirError
from wire.messages import Reason, Tier
from wire.service import Call

LABELS = ("short", "medium", "long")
CLASSIFIER = ModelInfo(
    "sizes",
    "sizes@1.2.0+abc",
    tasks=("classify",),
    capabilities=("classify", "logits", "input_ids", "token_type_ids"),
    labels=LABELS,
)


@dataclass
class FakeClassifier:
    """`fail_on` is a text that raises `fail`; `step_s` is how long each takes.

    `releases` answer in turn, the last on.
    """

    fail_on: str = ""
    fail: WeirError = field(default_factory=WeirError)
    step_s: float = 0.0
    multi_label: bool = False
    releases: tuple[str, ...] = (CLASSIFIER.release,)
    requests: list[ClassifyRequest] = field(default_factory=list)
    running: int = 0
    most_running: int = 0

    async def classify(self, request: ClassifyRequest, call: Call) -> Classified:
        release = self.releases[min(len(self.requests), len(self.releases) - 1)]
        self.requests.append(request)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self.step_s)
            if self.fail_on and request.text == self.fail_on:
                raise self.fail
            best = min(len(request.input_ids or request.text) // 5, 2)
            logits = tuple(float(index == best) * 2 for index in range(3))
            scores = sorted((LabelScore(label, 0.2 + 0.4 * (i == best)) for i, label in enumerate(LABELS)), key=_score)
            return Classified(
                LABELS[best],
                Tier.EDGE,
                tuple(scores),
                labels=LABELS[:2] if self.multi_label else (),
                multi_label=self.multi_label,
                logits=logits if request.return_logits else (),
                confidence=0.9,
                reason=Reason.CONFIDENT,
                release=release,
                node="fake",
                request_id=request.request_id,
            )
        finally:
            self.running -= 1


def _score(entry: LabelScore) -> float:
    return -entry.score
