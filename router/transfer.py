"""What to fetch of a release now, how fast, and how much at most.

A release comes in two parts: `four` is all that 4-bit serving needs, `eight` is what makes it 8-bit. A node
that cannot answer yet gets four at full rate; whatever comes while it serves keeps within a share of the
link. Each rule is one function from a case to a plan, or None when it has nothing to say; the first plan in
RULES' order counts. To add a rule: write the function, list it in RULES, test it in
tests/unit/router/test_transfer.py.

Invariants: never more bytes than the day's budget has left or the disk has free; the same inputs give the
same plan, and fetching what a plan says leads on (four, eight, nothing) and never back; pinned at 4 never
fetches eight; a metered link fetches eight only where it is pinned or clearly pays.

Must not know: where files come from, how they are checked, clocks.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from router.latency import known
from router.precision import PrecisionPlan, PrecisionReason

Part = Literal["four", "eight"]


class TransferReason(enum.StrEnum):
    """Why this is fetched, or nothing is."""

    COMPLETE = "complete"  # everything this node may hold is here
    PINNED_FOUR = "pinned_four"  # the operator said 4-bit, so the rest stays away
    BUDGET_SPENT = "budget_spent"  # the day's bytes are used up
    NO_ROOM = "no_room"  # the disk cannot take what is missing
    NOTHING_SERVES = "nothing_serves"  # the first part, at full rate: it is needed to answer at all
    NEWER_RELEASE = "newer_release"  # the first part, while another release serves
    TOO_BIG = "too_big"  # 8-bit does not fit this node's memory
    PINNED_EIGHT = "pinned_eight"  # the operator said 8-bit
    DOES_NOT_MATTER = "does_not_matter"  # 8-bit is as fast here, so it is simply better
    EIGHT_PAYS = "eight_pays"  # the precision plan would rather hold 8-bit
    METERED = "metered"  # bytes cost money, and 8-bit is not expected to pay for them
    AHEAD_OF_NEED = "ahead_of_need"  # bytes are free: have it before the link is too bad to fetch it


@dataclass(frozen=True, slots=True)
class Stock:
    """What of a release is on this node. `four_missing_bytes` are needed to serve 4-bit.

    `eight_missing_bytes` come on top of four; of a release without 4-bit they are all there is to fetch.
    What lies here in part counts as far as it is verified: missing bytes are those still to be moved.
    """

    release: str
    four: bool = False
    eight: bool = False
    four_missing_bytes: int = 0
    eight_missing_bytes: int = 0
    precisions: tuple[int, ...] = (4, 8)  # those the release has at all


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """What the operator allows. `bandwidth_share` is of the link, for whatever is not urgent."""

    pinned: int | None = None  # 4 or 8 bits
    metered: bool = False
    bytes_per_day: int | None = None
    bandwidth_share: float = 0.5

    def __post_init__(self) -> None:
        if self.pinned not in (None, 4, 8):
            raise ValueError(f"transfer pinned is {self.pinned}; it must be 4, 8 or None")
        if not 0 < self.bandwidth_share <= 1:
            raise ValueError(f"transfer bandwidth_share is {self.bandwidth_share}; it must be within (0, 1]")
        if self.bytes_per_day is not None and self.bytes_per_day < 0:
            raise ValueError(f"transfer bytes_per_day is {self.bytes_per_day}; it must be 0 or more, or None")


@dataclass(frozen=True, slots=True)
class TransferView:
    """What is seen now. None is unknown, which stops nothing.

    `bytes_per_s` is what the way to the release carries at full rate. `serving` says that a local model
    answers, of whatever release. `plan` is the precision plan in force; `eight_fits` whether memory takes 8-bit.
    """

    bytes_per_s: float | None = None
    spent_today_bytes: int = 0
    serving: bool = False
    plan: PrecisionPlan | None = None
    disk_free_bytes: int | None = None  # beyond what must stay free
    eight_fits: bool = True


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """What to fetch now, made at `at`.

    `share` is the part of the time, or of the link, the fetch may take: 1 is full rate. `bytes_per_s` says the
    same as a rate where the link's is known; with None, pace by the share alone. `most_bytes` bounds what may
    be moved before asking again.
    """

    fetch: Part | None
    reason: TransferReason
    text: str
    bytes_per_s: float | None = None
    share: float = 1.0
    most_bytes: int = 0
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Case:
    """One question, with what several rules ask of it."""

    stock: Stock
    view: TransferView
    settings: TransferSettings
    now: float

    @property
    def first(self) -> Part | None:
        """The part without which this release cannot serve; None when it can."""
        if 4 in self.stock.precisions:
            return None if self.stock.four else "four"
        return None if self.stock.eight else "eight"

    @property
    def four_is_all(self) -> bool:
        """Whether 8-bit is out of the question: the release lacks it, or the operator pinned 4."""
        return 8 not in self.stock.precisions or self.settings.pinned == 4

    @property
    def budget_left(self) -> int | None:
        day = self.settings.bytes_per_day
        return None if day is None else max(0, day - max(0, self.view.spent_today_bytes))

    def missing(self, part: Part) -> int:
        return max(0, self.stock.four_missing_bytes if part == "four" else self.stock.eight_missing_bytes)

    def fetching(self, part: Part, reason: TransferReason, why: str, *, share: float = 1.0) -> TransferPlan:
        """A plan to fetch a part, within budget and disk."""
        bounds = (self.missing(part), self.budget_left, self.view.disk_free_bytes)
        most = max(0, min(bound for bound in bounds if bound is not None))
        rate = known(self.view.bytes_per_s) or None
        limit = None if rate is None or share >= 1 else rate * share
        return TransferPlan(part, reason, why + self._how(part, rate, share), limit, min(share, 1.0), most, self.now)

    def nothing(self, reason: TransferReason, why: str) -> TransferPlan:
        return TransferPlan(None, reason, why, at=self.now)

    def _how(self, part: Part, rate: float | None, share: float) -> str:
        if self.missing(part) == 0:
            return "; all of it is here already"  # other releases share it
        pace = "at full rate" if share >= 1 else f"at {share:.0%} of the link"
        text = f"; {size(self.missing(part))} to go {pace}"
        if rate is not None:
            text += f", about {duration(self.missing(part) / (rate * min(share, 1.0)))}"
        left = self.budget_left
        return text if left is None else f"{text}; {size(left)} of the day's budget left"


Rule = Callable[[Case], TransferPlan | None]


def nothing_is_missing(case: Case) -> TransferPlan | None:
    """All that this node may hold of the release is here."""
    if case.first is not None or not (case.stock.eight or case.four_is_all):
        return None
    if case.settings.pinned == 4 and not case.stock.eight and 8 in case.stock.precisions:
        return case.nothing(TransferReason.PINNED_FOUR, "4-bit is here and pinned: the 8-bit part is not fetched")
    return case.nothing(TransferReason.COMPLETE, "everything of this release is here")


def pinned_to_what_is_not_there(case: Case) -> TransferPlan | None:
    """The operator pinned 4-bit, and the release has 8-bit alone."""
    if case.settings.pinned != 4 or 4 in case.stock.precisions:
        return None
    text = "4-bit is pinned and this release has 8-bit alone: nothing is fetched; pin 8 or offer another release"
    return case.nothing(TransferReason.PINNED_FOUR, text)


def eight_is_too_big(case: Case) -> TransferPlan | None:
    """What memory cannot hold is not worth its bytes, pinned or not."""
    if case.view.eight_fits or case.first == "four":
        return None
    instead = "it stays at 4-bit" if case.stock.four else "and this release has no other"
    return case.nothing(TransferReason.TOO_BIG, f"8-bit does not fit this node's memory: {instead}")


def budget_is_spent(case: Case) -> TransferPlan | None:
    """Not a byte above the day's budget, whatever for."""
    if case.budget_left != 0 or case.missing(case.first or "eight") == 0:
        return None
    day, spent = case.settings.bytes_per_day or 0, case.view.spent_today_bytes
    text = f"{size(spent)} of {size(day)} a day are used up: more tomorrow, or raise bytes_per_day"
    return case.nothing(TransferReason.BUDGET_SPENT, text)


def disk_is_full(case: Case) -> TransferPlan | None:
    """What is missing would not fit; better not to begin."""
    part, free = case.first or "eight", case.view.disk_free_bytes
    if free is None or case.missing(part) <= max(free, 0):
        return None
    bits = 8 if part == "eight" else 4
    text = f"{bits}-bit needs {size(case.missing(part))} and the disk has {size(free)} to spare: free some space"
    return case.nothing(TransferReason.NO_ROOM, text)


def nothing_serves(case: Case) -> TransferPlan | None:
    """Without a local model every byte but the first part's can wait."""
    if case.view.serving or case.first is None:
        return None
    return case.fetching(case.first, TransferReason.NOTHING_SERVES, "nothing serves here yet")


def newer_release(case: Case) -> TransferPlan | None:
    """Another release serves meanwhile, so there is no hurry."""
    if case.first is None:
        return None
    why = f"another release serves until {case.stock.release} can"
    return case.fetching(case.first, TransferReason.NEWER_RELEASE, why, share=case.settings.bandwidth_share)


def eight_is_pinned(case: Case) -> TransferPlan | None:
    """The operator wants 8-bit, also where bytes cost money."""
    if case.settings.pinned != 8:
        return None
    why = "8-bit is pinned; 4-bit serves until it is here"
    return case.fetching("eight", TransferReason.PINNED_EIGHT, why, share=case.settings.bandwidth_share)


def eight_is_as_fast(case: Case) -> TransferPlan | None:
    """Where precision does not matter for speed, 8-bit is better and nothing speaks against it but money."""
    plan = case.view.plan
    if case.settings.metered or plan is None or plan.reason is not PrecisionReason.DOES_NOT_MATTER:
        return None
    why = "8-bit is as fast as 4-bit on this box"
    return case.fetching("eight", TransferReason.DOES_NOT_MATTER, why, share=case.settings.bandwidth_share)


def eight_pays(case: Case) -> TransferPlan | None:
    """The precision plan would hold 8-bit if it were here, by more than its margin."""
    plan = case.view.plan
    if plan is None or plan.wanted != 8 or (case.settings.metered and not plan.costs_s):
        return None
    why = f"8-bit is expected to pay{_gain(plan)}"
    return case.fetching("eight", TransferReason.EIGHT_PAYS, why, share=case.settings.bandwidth_share)


def metered_link_waits(case: Case) -> TransferPlan | None:
    """Bytes cost money and nothing says that these will pay."""
    if not case.settings.metered:
        return None
    plan = case.view.plan
    because = (
        "nothing is known yet that speaks for it" if plan is None or not plan.costs_s else f"4-bit does{_gain(plan)}"
    )
    text = (
        f"the link is metered and {because}: {size(case.missing('eight'))} for 8-bit are not fetched; pin 8 to have it"
    )
    return case.nothing(TransferReason.METERED, text)


def ahead_of_need(case: Case) -> TransferPlan:
    """Bytes are free: when the cloud is out of reach and 8-bit would pay, it may be too late to fetch it."""
    why = "nothing asks for 8-bit now; it is fetched ahead, for when the link is bad"
    return case.fetching("eight", TransferReason.AHEAD_OF_NEED, why, share=case.settings.bandwidth_share)


RULES: tuple[Rule, ...] = (
    nothing_is_missing,
    pinned_to_what_is_not_there,
    eight_is_too_big,
    budget_is_spent,
    disk_is_full,
    nothing_serves,
    newer_release,
    eight_is_pinned,
    eight_is_as_fast,
    eight_pays,
    metered_link_waits,
    ahead_of_need,
)


def plan_transfer(stock: Stock, view: TransferView, settings: TransferSettings, now: float) -> TransferPlan:
    """What to fetch now. Ask again when it is done, after `most_bytes`, and every now and then. Never raises."""
    case = Case(stock, view, settings, now)
    return next(plan for rule in RULES if (plan := rule(case)) is not None)


def size(count: float) -> str:
    """Bytes as people say them."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _gain(plan: PrecisionPlan) -> str:
    figures = ", ".join(f"{bits}-bit {cost:.2f} s" for bits, cost in sorted(plan.costs_s.items()))
    return f" (expected cost of a request: {figures})" if figures else ""
