"""Whether the upstream is asked at all: a circuit breaker as an immutable value.

    closed     ── too many failures ──▶  open        every request goes up; outcomes are counted
    open       ── cooldown is over ───▶  half_open   nothing goes up
    half_open  ── a failure ──────────▶  open        a few trial requests go up; the cooldown has doubled
    half_open  ── enough successes ───▶  closed

Invariants: it closes by a success and by nothing else. A later failure never brings the end of the
cooldown forward. A trial whose outcome never comes does not keep the breaker half open for ever.
`now` is an argument, in seconds on any clock that does not run backwards.

Must not know: clocks, what a request is, how to send one.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace


class BreakerState(enum.StrEnum):
    """Closed lets everything through, open nothing, half-open a few trials."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class BreakerEvent(enum.StrEnum):
    """What can change the state."""

    TRIPPED = "tripped"  # a failure that was one too many
    FAILED = "failed"  # any other failure
    COOLED = "cooled"  # the cooldown is over
    RECOVERED = "recovered"  # a success that was enough


TRANSITIONS: dict[tuple[BreakerState, BreakerEvent], BreakerState] = {
    (BreakerState.CLOSED, BreakerEvent.TRIPPED): BreakerState.OPEN,
    (BreakerState.OPEN, BreakerEvent.FAILED): BreakerState.OPEN,  # a straggler: the cooldown starts anew
    (BreakerState.OPEN, BreakerEvent.COOLED): BreakerState.HALF_OPEN,
    (BreakerState.HALF_OPEN, BreakerEvent.TRIPPED): BreakerState.OPEN,
    (BreakerState.HALF_OPEN, BreakerEvent.RECOVERED): BreakerState.CLOSED,
}


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """When it trips and how long it stays away.

    It trips on `max_consecutive` failures in a row, or when at least `min_results` of the last
    `window` results are there and a share of `max_failure_share` of them failed.
    """

    max_consecutive: int = 3
    window: int = 20
    min_results: int = 10
    max_failure_share: float = 0.5
    cooldown_s: float = 1.0
    cooldown_factor: float = 2.0
    max_cooldown_s: float = 30.0
    trials: int = 1  # at once, while half open
    successes_to_close: int = 1
    trial_timeout_s: float = 30.0  # after this a trial's outcome is no longer waited for

    def __post_init__(self) -> None:
        for name in ("max_consecutive", "window", "min_results", "trials", "successes_to_close"):
            if getattr(self, name) < 1:
                raise ValueError(f"breaker {name} is {getattr(self, name)}; it must be at least 1")
        if not 0 < self.cooldown_s <= self.max_cooldown_s or not 1 <= self.cooldown_factor <= 100:
            raise ValueError(
                "breaker cooldown_s must be above 0 and at most max_cooldown_s, cooldown_factor within [1, 100]"
            )
        if not 0 < self.max_failure_share <= 1 or not self.trial_timeout_s > 0:
            raise ValueError("breaker max_failure_share must be within (0, 1] and trial_timeout_s above 0")


@dataclass(frozen=True, slots=True)
class Breaker:
    """The state, since when it holds, and what it was concluded from. `trips` counts since the last closing."""

    settings: BreakerSettings = BreakerSettings()
    state: BreakerState = BreakerState.CLOSED
    since: float = 0.0
    cooled_at: float = 0.0
    trips: int = 0
    consecutive: int = 0
    recent: tuple[bool, ...] = ()  # the last results, True for a failure
    running_trials: int = 0
    last_trial_at: float = 0.0
    successes: int = 0

    def at(self, now: float) -> Breaker:
        """This breaker as it stands at `now`: an open one becomes half open when its cooldown is over."""
        if self.state is BreakerState.OPEN and now >= self.cooled_at:
            return self._move(BreakerEvent.COOLED, self.cooled_at)
        return self

    def admits(self, now: float) -> bool:
        """Whether a request may go up at `now`."""
        current = self.at(now)
        if current.state is not BreakerState.HALF_OPEN:
            return current.state is BreakerState.CLOSED
        overdue = now - current.last_trial_at >= self.settings.trial_timeout_s
        return current.running_trials < self.settings.trials or overdue

    def started(self, now: float) -> Breaker:
        """After a request went up. Every start is followed by `succeeded`, `failed` or `abandoned`."""
        current = self.at(now)
        if current.state is not BreakerState.HALF_OPEN:
            return current
        overdue = now - current.last_trial_at >= self.settings.trial_timeout_s
        running = 0 if overdue else current.running_trials
        return replace(current, running_trials=running + 1, last_trial_at=now)

    def succeeded(self, now: float) -> Breaker:
        """After a request was answered."""
        current = self.at(now)._ended(failed=False)
        match current.state:
            case BreakerState.CLOSED:
                return replace(current, consecutive=0)
            case BreakerState.HALF_OPEN:
                current = replace(current, successes=current.successes + 1)
                enough = current.successes >= self.settings.successes_to_close
                return current._move(BreakerEvent.RECOVERED, now) if enough else current
            case BreakerState.OPEN:
                return current  # sent before it tripped: it says nothing about now

    def failed(self, now: float) -> Breaker:
        """After a request failed in a way that speaks against the upstream."""
        current = self.at(now)._ended(failed=True)
        current = replace(current, consecutive=current.consecutive + 1)
        if current.state is BreakerState.OPEN:
            return current._move(BreakerEvent.FAILED, now)
        tripped = current.state is BreakerState.HALF_OPEN or current._too_many()
        return current._move(BreakerEvent.TRIPPED, now) if tripped else current

    def abandoned(self, now: float) -> Breaker:
        """After a request ended without telling anything: its client left, or the fault was the caller's."""
        current = self.at(now)
        return replace(current, running_trials=max(current.running_trials - 1, 0))

    @property
    def cooldown_s(self) -> float:
        """How long it stays open after its latest trip; grows from trip to trip, up to a bound."""
        settings = self.settings
        # The exponent is bounded too: a float overflows long before anyone counts that far.
        grown = settings.cooldown_s * settings.cooldown_factor ** min(max(self.trips - 1, 0), 64)
        return min(grown, settings.max_cooldown_s)

    def _too_many(self) -> bool:
        settings = self.settings
        if self.consecutive >= settings.max_consecutive:
            return True
        share = sum(self.recent) / max(len(self.recent), 1)
        return len(self.recent) >= settings.min_results and share >= settings.max_failure_share

    def _ended(self, failed: bool) -> Breaker:
        recent = (*self.recent, failed)[-self.settings.window :]
        return replace(self, recent=recent, running_trials=max(self.running_trials - 1, 0))

    def _move(self, event: BreakerEvent, now: float) -> Breaker:
        """Follows the table; an event that it does not name changes nothing."""
        state = TRANSITIONS.get((self.state, event), self.state)
        if event in (BreakerEvent.TRIPPED, BreakerEvent.FAILED):
            moved = replace(self, trips=self.trips + 1) if event is BreakerEvent.TRIPPED else self
            cooled_at = max(self.cooled_at, now + moved.cooldown_s)
            since = now if self.state is not state else self.since
            return replace(moved, state=state, since=since, cooled_at=cooled_at, running_trials=0, successes=0)
        if event is BreakerEvent.COOLED:
            return replace(self, state=state, since=now, running_trials=0, successes=0)
        return Breaker(self.settings, state, now)
