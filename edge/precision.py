"""Keeps the engine at the precision the router plans: plan, and switch when the plan changed.

Speeds are those of late at the precision in force; the other's follow from the ratios that a rehearsal
measured on this box, so that both are of the same load and the same requests. Without a rehearsal it
is what was measured last, else the ratios below. How long an answer usually is comes from the node's
own traffic, escalation share and expected error from the release's calibration. A failed switch
counts as a change, so that the dwell time keeps it from being tried over and over.

A precision of the release that is not on this node yet is weighed as well: the plan may want it, and the
updater fetches by that. When it arrives it is rehearsed like any other, and the plan goes on from there.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from edge.activation import Activator
from edge.calibration import Calibrated
from edge.events import PrecisionWeighed, Sink
from edge.local import LocalState
from edge.ports import Clock, Outlook
from edge.rehearsal import Rehearsal
from router.events import PrecisionChanged, ThresholdsChanged
from router.latency import LatencyEstimate
from router.precision import (
    PrecisionFigures,
    PrecisionPlan,
    PrecisionSettings,
    Surroundings,
    plan_precision,
)
from wire.description import ModelInfo

# 8-bit against 4-bit on CPUs: decoding moves more bytes, prefill works on wider integers.
_DECODE_RATIO = 1.34
_PREFILL_RATIO = 0.9

_Rehearsed = tuple[str, frozenset[int]]  # a release and its precisions that were here


@dataclass(frozen=True, slots=True)
class PrecisionLoopSettings:
    """How often to plan, and the plan's own settings."""

    interval_s: float = 1.0
    plan: PrecisionSettings = field(default_factory=PrecisionSettings)


@dataclass(frozen=True, slots=True)
class PrecisionParts:
    """What the loop looks at and acts through. `both_fit` says whether memory holds both precisions.

    Without a `rehearsal` nothing is measured beforehand.
    """

    local: LocalState
    outlook: Outlook
    calibrated: Calibrated
    activator: Activator
    sink: Sink
    clock: Clock
    both_fit: Callable[[], bool]
    rehearsal: Rehearsal | None = None


class PrecisionLoop:
    """One per node."""

    def __init__(self, parts: PrecisionParts, settings: PrecisionLoopSettings) -> None:
        self._parts, self._settings = parts, settings
        self._plan: PrecisionPlan | None = None
        self._release = ""  # that the plan is of
        self._failed_at = -math.inf
        self._told: PrecisionPlan | None = None
        self._rehearsed: tuple[_Rehearsed, Mapping[int, LatencyEstimate]] = (("", frozenset()), {})  # and how it went

    @property
    def plan(self) -> PrecisionPlan | None:
        """The plan in force; None before the engine was ever there."""
        return self._plan

    async def run(self) -> None:
        """Plans until cancelled."""
        while True:
            await self.step()
            await asyncio.sleep(self._settings.interval_s)

    async def step(self) -> None:
        """Plans once, and switches where the engine is not at the plan's precision."""
        parts, served = self._parts, self._parts.local.served
        if served is None or not parts.local.available:
            return
        if await self._rehearse(served):
            return  # what is served may just have changed hands; plan next time
        now = parts.clock()
        before = self._plan or PrecisionPlan(served.precision, now)
        if served.release != self._release:  # what was wanted of another release says nothing of this one
            self._release, before = served.release, replace(before, wanted=None)
        figures = tuple(self._figures(served, bits) for bits in self._of_release(served))
        around = Surroundings(parts.outlook.link(), parts.outlook.view(1), parts.both_fit())
        plan = self._plan = plan_precision(before, figures, around, self._usual(), now)
        if _news(plan, self._told):
            self._told = plan
            parts.sink.emit(PrecisionWeighed(now, plan))
        if plan.bits != before.bits:
            parts.sink.emit(PrecisionChanged(now, before.bits, plan))
        if plan.bits == served.precision or now - self._failed_at < self._settings.plan.dwell_s:
            return
        if await parts.activator.put(None, served.release, plan.bits, f"{plan.reason}: {plan.text}"):
            force = parts.calibrated.in_force(served.release, plan.bits, None)
            parts.sink.emit(ThresholdsChanged(parts.clock(), plan.bits, force.end.threshold, force.prefix.threshold))
        else:
            self._failed_at = parts.clock()
            self._plan = replace(plan, bits=served.precision, since=self._failed_at, wanted=served.precision)

    async def _rehearse(self, served: ModelInfo) -> bool:
        """Measures every precision of a release that is here and was not rehearsed yet; says whether it did."""
        rehearsal, pinned = self._parts.rehearsal, self._settings.plan.pinned is not None
        what = served.release, frozenset(served.precisions_available)
        if rehearsal is None or pinned or what == self._rehearsed[0] or len(served.precisions_available) < 2:
            return False
        self._rehearsed = (what, {})
        self._rehearsed = (what, await rehearsal.run(served))
        return True

    def _of_release(self, served: ModelInfo) -> tuple[int, ...]:
        """The precisions of the release, here or not."""
        manifest = self._parts.calibrated.manifest(served.release)
        here = served.precisions_available
        return here if manifest is None else tuple(sorted({*here, *manifest.precisions}))

    def _usual(self) -> PrecisionSettings:
        """The plan's settings, with what an answer usually is on this node."""
        tokens = self._parts.local.usual_tokens
        return self._settings.plan if tokens is None else replace(self._settings.plan, tokens=max(1, round(tokens)))

    def _figures(self, served: ModelInfo, bits: int) -> PrecisionFigures:
        speed, assumed = self._speed(served, bits)
        entry = self._parts.calibrated.entry(served.release, bits)
        return PrecisionFigures(
            bits,
            math.nan if speed.first_token_s is None else speed.first_token_s,
            math.nan if speed.per_token_s is None else speed.per_token_s,
            math.nan if entry is None else entry.escalation_share,
            math.nan if entry is None else entry.max_disagreement,
            here=bits in served.precisions_available,
            assumed=assumed,
        )

    def _speed(self, served: ModelInfo, bits: int) -> tuple[LatencyEstimate, bool]:
        """How fast a precision is expected to be, and whether that is assumed rather than measured here."""
        local, ratio = self._parts.local, self._ratio(bits, served.precision)
        of_late = local.latency(served.precision)
        if ratio is not None and of_late.first_token_s is not None and of_late.per_token_s is not None:
            return LatencyEstimate(of_late.first_token_s * ratio[0], of_late.per_token_s * ratio[1]), False
        measured = local.latency(bits)
        if measured.first_token_s is not None and measured.per_token_s is not None:
            return measured, False
        other = local.latency(12 - bits)  # of 4 and 8, the other one
        if other.first_token_s is None or other.per_token_s is None:
            return measured, False
        power = 1 if bits == 8 else -1
        slower = LatencyEstimate(other.first_token_s * _PREFILL_RATIO**power, other.per_token_s * _DECODE_RATIO**power)
        return slower, True

    def _ratio(self, bits: int, served: int) -> tuple[float, float] | None:
        """How much longer first token and further tokens take than at `served`; None without a rehearsal."""
        one, other = self._rehearsed[1].get(bits), self._rehearsed[1].get(served)
        if one is None or other is None:
            return None
        if not (one.first_token_s and other.first_token_s):
            return None
        first = one.first_token_s / other.first_token_s
        if one.per_token_s == other.per_token_s == 0:  # a classifier's answer is one token, after which there are none
            return first, 1.0
        if not (one.per_token_s and other.per_token_s):
            return None
        return first, one.per_token_s / other.per_token_s


def _news(plan: PrecisionPlan, told: PrecisionPlan | None) -> bool:
    """Whether a plan is worth telling: another outcome or reason, or a cost that is another by a quarter."""
    if told is None or (plan.bits, plan.reason) != (told.bits, told.reason):
        return True
    return any(
        abs(cost - told.costs_s.get(bits, cost)) > told.costs_s.get(bits, cost) / 4
        for bits, cost in plan.costs_s.items()
    )
