"""What travels for Score, and who answers it: how likely given continuations of a prompt are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from wire.messages import Context, Message
from wire.service import Call


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """How likely are these continuations of one prompt?"""

    model: str = ""
    messages: tuple[Message, ...] = ()
    prompt: str = ""
    continuations: tuple[str, ...] = ()
    context: Context = field(default_factory=Context)
    request_id: str = ""
    hops: int = 0


@dataclass(frozen=True, slots=True)
class ScoredContinuation:
    """One natural log-prob per token id."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Scored:
    """The continuations in the order asked."""

    scored: tuple[ScoredContinuation, ...]
    release: str = ""
    weight_digest: str = ""
    precision: int = 0
    prompt_tokens: int = 0


class Scores(Protocol):
    """Scores continuations: with the unmodified distribution, token by token."""

    async def score(self, request: ScoreRequest, call: Call) -> Scored:
        """Raises WeirError; a caller that leaves gives up its places."""
        ...
