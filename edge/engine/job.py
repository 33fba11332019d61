"""What the service hands to the batcher, and what comes back: jobs, tickets, events.

A ticket is the two-thread border of one request. The event loop reads events and may cancel; the
decode thread posts events. Events of one ticket are bounded by its job's max_tokens. Those of a step cross together,
in one call (Outbox).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from router.confidence import Signals
from runtime.ort.sampling import Constraint, SamplingParams
from runtime.ort.steps import StepModel
from wire.deadline import Deadline
from wire.errors import WeirError


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """One loaded model as the batcher sees it.

    `stop_ids` end an answer; `decode` gives text, `token_bytes` a token's own bytes. `kv_bytes_per_token` is what one
    position of a row takes; 1 where that is not known, so that tokens are counted.

    Two with equal `release` take each other's token ids.
    """

    steps: StepModel
    decode: Callable[[Sequence[int]], str]
    stop_ids: frozenset[int]
    release: str
    precision: int
    weight_digest: str
    token_bytes: Callable[[int], bytes] = lambda _: b""
    kv_bytes_per_token: int = 1


@dataclass(frozen=True, slots=True)
class Job:
    """One request, tokenized. `prompt_ids` and `max_tokens` fit the model's rows.

    With `continuations` nothing is decoded: each of them is scored as what follows the prompt, and Scored is the
    only event. `max_tokens` is then the longest one's length.
    """

    served: Served
    prompt_ids: Sequence[int]
    max_tokens: int
    deadline: Deadline
    stops: tuple[str, ...] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    constraint: Constraint | None = None  # of this answer alone
    top_logprobs: int = 0
    continuations: tuple[tuple[int, ...], ...] = ()
    tenant: str = ""
    priority: int = 0
    value: float | None = None

    @property
    def claim(self) -> int:
        """Tokens of KV that it may come to."""
        return len(self.prompt_ids) + self.max_tokens

    @property
    def claim_bytes(self) -> int:
        return self.claim * self.served.kv_bytes_per_token


@dataclass(frozen=True, slots=True)
class Token:
    """One decoded token and the text that became certain with it, which may be empty."""

    text: str
    token: int
    logprob: float
    signals: Signals
    top: tuple[tuple[int, float], ...] = ()  # the likeliest tokens and their log-probs, as many as were asked for


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer is complete. `text` was held back until now; `served` is what answered."""

    finish_reason: str
    text: str
    signals: Signals
    served: Served
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Scored:
    """The continuations' log-probs, token by token, and the log-prob that each ends there."""

    logprobs: tuple[tuple[float, ...], ...]
    ends: tuple[float, ...]
    served: Served
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    cached_tokens: int = 0


Event = Token | Ended | Scored | WeirError


class Ticket:
    """One submitted job, seen from the event loop."""

    def __init__(self) -> None:
        self.cancelled = False
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    def cancel(self) -> None:
        """The caller left: the slot is free after the step that runs now. Does nothing once ended."""
        self.cancelled = True

    def deliver(self, event: Event) -> None:
        """Called in the event loop only."""
        self._events.put_nowait(event)

    async def next(self) -> Token | Ended | Scored:
        """The next event; Ended or Scored is the last. Raises the WeirError that ended the job."""
        event = await self._events.get()
        if isinstance(event, WeirError):
            raise event
        return event


class Outbox:
    """Events on their way from the decode thread, whose own it is, to the tickets of an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._posted: list[tuple[Ticket, Event]] = []

    def post(self, ticket: Ticket, event: Event) -> None:
        self._posted.append((ticket, event))

    def flush(self) -> None:
        """Sends what was posted, in that order."""
        if self._posted:
            posted, self._posted = self._posted, []
            self._loop.call_soon_threadsafe(_deliver, posted)


def _deliver(posted: list[tuple[Ticket, Event]]) -> None:
    for ticket, event in posted:
        ticket.deliver(event)
