"""An open-loop client: requests leave when they are due, whether or not earlier ones were answered.

Latency counts from the instant a request was due, so that a server (or this client) that stalls shows
in the figures instead of slowing the arrivals down. Arrivals are a seeded Poisson stream. Every
request belongs to the phase that was named last before it was due. Counts are bounded: a request that
would be one too many in flight is not sent and counts as failed.

Must not know: what is measured with it, how the service is reached.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from runtime.tokenizer import Tokenizer
from wire.deadline import Deadline
from wire.errors import WeirError
from wire.messages import Committed, Final, GenerateRequest
from wire.service import Call, InferenceService

TOO_MANY, NO_END = "NotSent", "NoEnd"
_TRIES = 1000
_WORDS = (
    "the a of and to in is was for on with as by at from that this which water river boat winter summer light "
    "people city house year time long small large first last new old great little open under over before after"
)


@dataclass(frozen=True, slots=True)
class Pace:
    """A Poisson stream of requests. Equal seeds give equal arrivals."""

    per_minute: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.per_minute <= 60_000:
            raise ValueError(f"per_minute is {self.per_minute}; it must be above 0 and at most 60000")

    def arrivals(self) -> Iterator[float]:
        """Seconds after the start, without end."""
        draw, at = random.Random(self.seed), 0.0
        while True:
            at += draw.expovariate(self.per_minute / 60)
            yield at


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request. Times are seconds: `due_s` since the load began, the others since it was due.

    `error` is the class of what ended it, empty when it was answered; `message` says more.
    """

    phase: str
    due_s: float
    total_s: float
    committed_s: float | None = None
    tokens: int = 0
    tier: str = ""
    release: str = ""
    precision: int = 0
    error: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Summary:
    """A set of outcomes; times are of answered requests, nan where there were none."""

    sent: int
    failed: int
    p50_ms: float
    p99_ms: float
    worst_ms: float
    errors: Mapping[str, int] = field(default_factory=dict)


def quantile(values: Iterable[float], share: float) -> float:
    """The nearest-rank quantile: a value that occurred. nan of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def summarize(outcomes: Sequence[Outcome]) -> Summary:
    """What a set of outcomes comes to."""
    times = [outcome.total_s * 1e3 for outcome in outcomes if not outcome.error]
    errors = Counter(outcome.error for outcome in outcomes if outcome.error)
    return Summary(
        len(outcomes),
        errors.total(),
        quantile(times, 0.5),
        quantile(times, 0.99),
        max(times, default=math.nan),
        dict(errors),
    )


def prompt_of(tokenizer: Tokenizer, tokens: int, draw: random.Random) -> str:
    """Random words that are exactly `tokens` tokens. Raises ValueError when none are found."""
    text, words, count, most = "", _WORDS.split(), 0, tokens
    for _ in range(_TRIES):
        # What is lacking is halved until single words decide; a word may be one token or many.
        step = max(min((tokens - count) // 2, most), 1)
        longer = " ".join([text, *(draw.choice(words) for _ in range(step))]).strip()
        found = len(tokenizer.encode(longer))
        if found == tokens:
            return longer
        if found < tokens:
            text, count = longer, found
        elif step > 1:
            most = step // 2
        else:
            text = text.rpartition(" ")[0]
            count = len(tokenizer.encode(text)) if text else 0
    raise ValueError(f"no text of exactly {tokens} tokens was found for this tokenizer")


class OpenLoop:
    """`async with OpenLoop(…) as load:` sends from here on; leaving the block waits for what is in flight.

    `ask(n)` makes the n-th request. Each has `deadline_s` from when it was due.
    """

    def __init__(
        self,
        service: InferenceService,
        ask: Callable[[int], GenerateRequest],
        pace: Pace,
        *,
        deadline_s: float = 30.0,
        most_in_flight: int = 256,
    ) -> None:
        self._service, self._ask, self._pace = service, ask, pace
        self._deadline_s, self._most = deadline_s, most_in_flight
        self._phases: list[tuple[float, str]] = [(0.0, "")]
        self._in_flight: set[asyncio.Task[None]] = set()
        self._sending: asyncio.Task[None] | None = None
        self._began = 0.0
        self.outcomes: list[Outcome] = []

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def now_s(self) -> float:
        """Seconds since the load began: the scale of Outcome.due_s."""
        return time.monotonic() - self._began

    def phase(self, name: str) -> None:
        """What is due from now on belongs to `name`."""
        self._phases.append((self.now_s, name))

    def of(self, phase: str) -> list[Outcome]:
        """The finished requests of a phase."""
        return [outcome for outcome in self.outcomes if outcome.phase == phase]

    async def __aenter__(self) -> Self:
        self._began = time.monotonic()
        self._sending = asyncio.create_task(self._send())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        if self._in_flight:
            _, late = await asyncio.wait(self._in_flight, timeout=self._deadline_s + 1)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _send(self) -> None:
        for number, due in enumerate(self._pace.arrivals()):
            await asyncio.sleep(max(0.0, due - self.now_s))
            if len(self._in_flight) >= self._most:
                self._note(due, error=TOO_MANY, message=f"{self._most} requests are in flight already")
                continue
            task = asyncio.create_task(self._one(number, due))
            self._in_flight.add(task)
            task.add_done_callback(self._in_flight.discard)

    async def _one(self, number: int, due: float) -> None:
        call = Call(Deadline(self._began + due + self._deadline_s))
        committed: float | None = None
        final: Final | None = None
        try:
            async with aclosing(self._service.generate(self._ask(number), call)) as events:
                async for event in events:
                    if isinstance(event, Committed):
                        committed = self.now_s - due
                    elif isinstance(event, Final):
                        final = event
        except WeirError as error:
            self._note(due, committed, error=type(error).__name__, message=error.message)
            return
        except asyncio.CancelledError:
            self._note(due, committed, error=NO_END, message="it went on past its deadline")
            raise
        if final is None:
            self._note(due, committed, error=NO_END, message="the answer ended without a Final")
            return
        self._note(due, committed, final)

    def _note(
        self, due: float, committed: float | None = None, final: Final | None = None, error: str = "", message: str = ""
    ) -> None:
        phase = next(name for since, name in reversed(self._phases) if since <= due)
        answered = (
            {}
            if final is None
            else {
                "tokens": final.usage.completion_tokens,
                "tier": str(final.tier),
                "release": final.release,
                "precision": final.precision,
            }
        )
        self.outcomes.append(
            Outcome(phase, due, self.now_s - due, committed, error=error, message=message, **answered)  # type: ignore[arg-type]
        )
