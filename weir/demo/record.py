"""What the demo keeps of every request: what came back, from where, why, and how long it took."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from weir.client import Answer
from weir.demo.errors import DemoError


@dataclass(frozen=True, slots=True)
class Record:
    """One request. `act` is cascade, cloud_only, narrow, cut or back; `ms` is as the client saw it.

    `tokens` counts prompt and answer in the tier that answered. `error` is set where no answer came.
    """

    act: str
    task: str
    question: str
    answer: str
    ms: float
    tier: str = ""
    reason: str = ""
    precision: int = 0
    weight_format: str = ""
    weight_digest: str = ""
    release: str = ""
    confidence: float | None = None
    threshold: float | None = None
    degraded: bool = False
    wanted_reason: str = ""
    tokens: int = 0
    draft_status: str = ""
    error: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.error)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def from_answer(act: str, task: str, question: str, answer: Answer) -> Record:
    """The record of an answer."""
    return Record(
        act=act,
        task=task,
        question=question,
        answer=answer.text.strip(),
        ms=answer.total_ms,
        tier=str(answer.tier),
        reason=str(answer.reason),
        precision=answer.precision,
        weight_format=answer.weight_format,
        weight_digest=answer.weight_digest,
        release=answer.release,
        confidence=answer.confidence,
        threshold=answer.threshold,
        degraded=answer.degraded,
        wanted_reason="" if answer.wanted_reason is None else str(answer.wanted_reason),
        tokens=answer.usage.prompt_tokens + answer.usage.completion_tokens,
        draft_status=answer.draft_status,
    )


def of_act(records: Iterable[Record], *acts: str) -> list[Record]:
    """The records of some acts."""
    return [record for record in records if record.act in acts]


def prove_precision(records: Sequence[Record]) -> dict[int, list[str]]:
    """The weight digests seen on the edge, per precision.

    Raises DemoError when one set of weights was given out as two precisions: precision is never a label.
    """
    seen: dict[int, set[str]] = {}
    for record in records:
        if record.tier == "edge" and not record.failed:
            seen.setdefault(record.precision, set()).add(record.weight_digest)
    digests = [digest for group in seen.values() for digest in group]
    if len(digests) != len(set(digests)):
        raise DemoError("the edge gave out the same weights as two precisions; this is a fault of weir")
    if any(not digest for digest in digests):
        raise DemoError("the edge answered without saying with which weights; this is a fault of weir")
    return {bits: sorted(group) for bits, group in sorted(seen.items())}
