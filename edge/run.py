"""One request on its way through the cascade: what was asked, seen, tried and shown so far.

Plain state, changed by edge.cascade alone. Text lives here as long as its request and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from router.confidence import Signals
from router.decision import Decision
from router.decision import Request as Asked
from wire.description import ModelInfo
from wire.errors import WeirError
from wire.messages import Delta, Final, GenerateRequest, Reason, Tier
from wire.messages import Signals as WireSignals
from wire.service import Call


@dataclass(slots=True)
class Attempt:
    """What the edge has written for this request."""

    began: float
    deltas: list[Delta] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    signals: WireSignals | None = None
    final: Final | None = None
    release: str = ""  # as the engine said before it said anything else
    first_at: float | None = None
    ended_at: float | None = None

    def add(self, delta: Delta, now: float) -> None:
        if self.first_at is None:
            self.first_at = now
        self.deltas.append(delta)
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs)
        self.signals = delta.signals or self.signals

    @property
    def tokens(self) -> int:
        """Tokens decoded so far, whether or not their text is complete."""
        if self.signals is not None:
            return max(self.signals.tokens, len(self.token_ids))
        return len(self.token_ids) or len(self.deltas)


@dataclass(slots=True)
class Run:
    """The state of one request. Times are of the node's clock, in seconds."""

    request: GenerateRequest
    call: Call
    asked: Asked
    began: float
    served: ModelInfo | None
    attempt: Attempt | None = None
    previous_tokens: int = 0
    committed: Decision | None = None
    spent: int = 0  # tokens of attempts that were given up for another one
    edge_error: WeirError | None = None
    upstream_error: WeirError | None = None
    upstream_began: float | None = None
    upstream_first_at: float | None = None
    upstream_heard_at: float | None = None  # of the try that runs, the last event
    upstream_ended_at: float | None = None
    upstream_tier: Tier = Tier.CLOUD
    upstream_release: str = ""
    upstream_reason: Reason | None = None
    draft_offered: int = 0
    draft_status: str = ""
    edge_confidence: float | None = None
    threshold: float | None = None
    next: Decision | None = None

    @property
    def answer(self) -> Attempt | None:
        """The edge's finished attempt, if there is one."""
        return self.attempt if self.attempt is not None and self.attempt.final is not None else None

    def shown(self, deltas: Sequence[Delta]) -> list[Delta]:
        """Deltas with no more than the client asked for."""
        logprobs, signals = self.request.return_logprobs, self.request.return_signals
        return [
            Delta(
                delta.text,
                delta.token_ids if logprobs else (),
                delta.logprobs if logprobs else (),
                delta.signals if signals else None,
                delta.token_bytes if logprobs else (),
                delta.top_logprobs if logprobs else (),
            )
            for delta in deltas
            if delta.text or logprobs or signals
        ]

    def shown_at_once(self, deltas: Sequence[Delta]) -> list[Delta]:
        """What came before it could be shown, as one piece: every piece costs each hop to the client a message."""
        return joined(self.shown(deltas))


def joined(deltas: Sequence[Delta]) -> list[Delta]:
    """Pieces one after another as a single one; none of none. The signals are the last ones."""
    if len(deltas) < 2:
        return list(deltas)
    return [
        Delta(
            "".join(delta.text for delta in deltas),
            tuple(token for delta in deltas for token in delta.token_ids),
            tuple(logprob for delta in deltas for logprob in delta.logprobs),
            next((delta.signals for delta in reversed(deltas) if delta.signals is not None), None),
            tuple(text for delta in deltas for text in delta.token_bytes),
            tuple(top for delta in deltas for top in delta.top_logprobs),
        )
    ]


_signal_values = attrgetter(*Signals.__dataclass_fields__)  # in the order of the fields, at once: asked at every token


def router_signals(signals: WireSignals) -> Signals:
    """The wire's signals as the router's."""
    return Signals(*_signal_values(signals))
