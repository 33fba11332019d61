"""Which precision the edge should hold: the one with the least expected cost of a request.

    cost(b) = t_edge(b) + p_escalate(b)·t_upstream + error_cost·expected_error(b)

t_upstream is RTT + payload/bandwidth + the cloud's own time. Where the cloud cannot be reached,
nothing escalates: what would have is answered here, and counts as error instead. So a good link
favours few bits and escalation, a bad or dead one more bits at home.

A precision that is not on this node yet cannot be held, but it can be wanted: the plan weighs it like the
others, names it in `wanted` and holds what is here. What to do about it is router.transfer's to say.

Invariants: constant inputs change the plan at most once (a relative margin and a dwell time stop
flapping); an unknown link changes nothing; a pin beats everything; nothing is held that is not here.

Must not know: how weights are loaded or fetched, what a link is made of.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from router.decision import EdgeView, LinkView, UpstreamView
from router.latency import edge_forecast, known, upstream_forecast


class PrecisionReason(enum.StrEnum):
    """Why the plan is what it is."""

    START = "start"  # nothing has been weighed yet
    PINNED = "pinned"  # the operator said so
    ONLY_ONE = "only_one"  # the release or the box has no other
    DOES_NOT_MATTER = "does_not_matter"  # memory holds both and 8-bit is as fast
    UNCALIBRATED = "uncalibrated"  # nothing says what a precision gets wrong: 8-bit from the start, and it stays
    LINK_UNKNOWN = "link_unknown"  # so what is, stays
    FIGURES_UNKNOWN = "figures_unknown"  # a precision or the cloud has not been measured, so what is, stays
    STILL_BEST = "still_best"
    NO_CLEAR_GAIN = "no_clear_gain"  # the other is better, but not by the margin
    DWELL = "dwell"  # the other is better, but the last change is too recent
    ESCALATING_IS_CHEAP = "escalating_is_cheap"  # changed to fewer bits
    ESCALATING_IS_DEAR = "escalating_is_dear"  # changed to more bits
    CLOUD_UNREACHABLE = "cloud_unreachable"  # changed: errors at home are what counts
    NOT_HERE_YET = "not_here_yet"  # another one is wanted and still to be fetched


@dataclass(frozen=True, slots=True)
class PrecisionFigures:
    """One precision on this box: its speed, measured or assumed, and what its calibration expects.

    `escalation_share` is the share of requests under the threshold; `expected_error` the share of all
    requests answered on the edge where the cloud would have answered otherwise. `here` says whether its
    weights are on this node; `assumed` that its speed was never measured here, but follows from another's.
    """

    bits: int
    first_token_s: float
    per_token_s: float
    escalation_share: float
    expected_error: float
    here: bool = True
    assumed: bool = False


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What lies between this node and the cloud now, and whether memory holds both precisions."""

    link: LinkView = field(default_factory=LinkView)
    upstream: UpstreamView = field(default_factory=UpstreamView)
    both_fit: bool = True

    @property
    def unreachable(self) -> bool:
        return self.link.down or not self.upstream.admits or not self.upstream.configured

    @property
    def link_known(self) -> bool:
        return known(self.link.rtt_s) is not None and bool(known(self.link.bytes_per_s))


@dataclass(frozen=True, slots=True)
class PrecisionSettings:
    """What a usual request is like, what an error costs in seconds, and what keeps the plan calm."""

    pinned: int | None = None
    tokens: int = 32
    payload_bytes: int = 2000
    answer_bytes_per_token: float = 40.0
    error_cost_s: float = 4.0
    margin: float = 0.05  # the other must cost this share less
    dwell_s: float = 5.0
    same_speed: float = 0.05  # 8-bit counts as fast as 4-bit when it takes at most this share longer


@dataclass(frozen=True, slots=True)
class PrecisionPlan:
    """The precision to hold, since when and why; `costs_s` per precision where they were worked out.

    `wanted` is the precision that would be held if every one were here; None before anything was planned.
    """

    bits: int
    since: float
    reason: PrecisionReason = PrecisionReason.START
    text: str = ""
    costs_s: Mapping[int, float] = field(default_factory=dict)
    changed: bool = False
    wanted: int | None = None


def plan_precision(
    plan: PrecisionPlan,
    figures: tuple[PrecisionFigures, ...],
    around: Surroundings,
    settings: PrecisionSettings,
    now: float,
) -> PrecisionPlan:
    """The plan that follows `plan`. Called every now and then; never raises."""
    here = [option.bits for option in figures if option.here]
    track = replace(plan, bits=_wanted_so_far(plan, figures), changed=False)
    ideal = _ideal(track, figures, around, settings, now)
    if ideal.bits in here or not here:
        held, reason, text = ideal.bits, ideal.reason, ideal.text
    else:
        held = plan.bits if plan.bits in here else max(here)
        reason, missing = PrecisionReason.NOT_HERE_YET, f"{ideal.bits}-bit is not here yet, so {held}-bit is held"
        text = f"{missing}: {ideal.text}"
    changed = held != plan.bits
    since = now if changed or ideal.changed else plan.since
    return PrecisionPlan(held, since, reason, text, ideal.costs_s, changed, ideal.bits)


def _wanted_so_far(plan: PrecisionPlan, figures: tuple[PrecisionFigures, ...]) -> int:
    """Where the weighing starts from.

    A node may have begun with the only part it had, which was no choice. Where nothing tells what 4-bit gets
    wrong the plan will never weigh, so it wants 8-bit from the start.
    """
    if plan.wanted is not None:
        return plan.wanted
    return 8 if _uncalibrated(figures) and any(option.bits == 8 for option in figures) else plan.bits


def _unknown(figures: tuple[PrecisionFigures, ...], around: Surroundings) -> tuple[PrecisionReason, str] | None:
    """Why nothing can be weighed, apart from figures that a few requests will bring."""
    if _uncalibrated(figures):
        return PrecisionReason.UNCALIBRATED, "without calibrations nothing says what a precision gets wrong"
    if not around.unreachable and not around.link_known:
        return PrecisionReason.LINK_UNKNOWN, "the link is unknown"
    return None


def _uncalibrated(figures: tuple[PrecisionFigures, ...]) -> bool:
    return all(known(option.escalation_share) is None for option in figures)


def _ideal(
    plan: PrecisionPlan,
    figures: tuple[PrecisionFigures, ...],
    around: Surroundings,
    settings: PrecisionSettings,
    now: float,
) -> PrecisionPlan:
    """The plan as if every precision were here."""
    options = {option.bits: option for option in figures}
    if settings.pinned is not None:
        return _move(plan, settings.pinned, PrecisionReason.PINNED, now, "the operator pinned it")
    if len(options) < 2:
        return _move(plan, next(iter(options), plan.bits), PrecisionReason.ONLY_ONE, now, "there is no other here")
    if _does_not_matter(plan, options, around, settings):
        text = "memory holds both precisions and 8-bit is as fast here"
        return _calmly(plan, 8, PrecisionReason.DOES_NOT_MATTER, settings, now, text=text, costs={})
    present = plan.bits if plan.bits in options else max(options)
    costs = {bits: _cost(option, around, settings) for bits, option in options.items()}
    sound = {bits: cost for bits, cost in costs.items() if cost is not None}
    if (unknown := _unknown(figures, around)) or len(sound) < len(costs):
        reason, text = unknown or (PrecisionReason.FIGURES_UNKNOWN, "something is not measured yet")
        return _move(plan, present, reason, now, f"{text}: {present}-bit stays")
    planned = _weigh(plan, sound, around, settings, now)
    assumed = [f"{bits}-bit" for bits, option in sorted(options.items()) if option.assumed]
    return (
        replace(planned, text=f"{planned.text}; the speed of {', '.join(assumed)} is assumed") if assumed else planned
    )


def _weigh(
    plan: PrecisionPlan, costs: Mapping[int, float], around: Surroundings, settings: PrecisionSettings, now: float
) -> PrecisionPlan:
    best = min(costs, key=lambda bits: (costs[bits], -bits))
    text = _explain(costs, around)
    if best == plan.bits:
        return _keep(plan, PrecisionReason.STILL_BEST, text, costs)
    if plan.bits in costs and costs[best] > costs[plan.bits] * (1 - settings.margin):
        return _keep(plan, PrecisionReason.NO_CLEAR_GAIN, text, costs)
    if around.unreachable:
        reason = PrecisionReason.CLOUD_UNREACHABLE
    else:
        reason = PrecisionReason.ESCALATING_IS_CHEAP if best < plan.bits else PrecisionReason.ESCALATING_IS_DEAR
    return _calmly(plan, best, reason, settings, now, text=text, costs=costs)


def _cost(option: PrecisionFigures, around: Surroundings, settings: PrecisionSettings) -> float | None:
    """Expected seconds of a usual request, errors priced in; None where a figure is missing."""
    edge = edge_forecast(EdgeView(first_token_s=option.first_token_s, per_token_s=option.per_token_s), settings.tokens)
    share, error = known(option.escalation_share), known(option.expected_error)
    if not edge.complete or share is None or error is None:
        return None
    if around.unreachable:
        return edge.seconds + settings.error_cost_s * min(error + share, 1.0)
    upstream = upstream_forecast(
        around.link,
        around.upstream,
        settings.payload_bytes,
        settings.tokens,
        settings.answer_bytes_per_token,
        careful=False,
    )
    return edge.seconds + share * upstream.seconds + settings.error_cost_s * error if upstream.complete else None


def _does_not_matter(
    plan: PrecisionPlan, options: Mapping[int, PrecisionFigures], around: Surroundings, settings: PrecisionSettings
) -> bool:
    """Whether 8-bit costs nothing on this box. Asked more strictly of a node at 4-bit, against flapping."""
    if not around.both_fit or set(options) != {4, 8} or any(option.assumed for option in options.values()):
        return False  # "as fast" is not said of a speed that nobody measured
    four, eight = (
        edge_forecast(EdgeView(first_token_s=o.first_token_s, per_token_s=o.per_token_s), settings.tokens)
        for o in (options[4], options[8])
    )
    allowance = 1 + settings.same_speed if plan.bits == 8 else 1.0
    return four.complete and eight.complete and eight.seconds <= four.seconds * allowance


def _calmly(
    plan: PrecisionPlan,
    bits: int,
    reason: PrecisionReason,
    settings: PrecisionSettings,
    now: float,
    *,
    text: str,
    costs: Mapping[int, float],
) -> PrecisionPlan:
    """The change, unless the last one is too recent. The start is no change, nor is leaving what is not there."""
    settled = plan.reason is PrecisionReason.START or (costs and plan.bits not in costs)
    if bits != plan.bits and not settled and now - plan.since < settings.dwell_s:
        return _keep(plan, PrecisionReason.DWELL, f"{text}; the last change is too recent", costs)
    return _move(plan, bits, reason, now, text, costs=costs)


def _move(
    plan: PrecisionPlan,
    bits: int,
    reason: PrecisionReason,
    now: float,
    text: str,
    *,
    costs: Mapping[int, float] | None = None,
) -> PrecisionPlan:
    if bits == plan.bits:
        return _keep(plan, reason, text, costs)
    return PrecisionPlan(bits, now, reason, text, costs or {}, changed=True)


def _keep(
    plan: PrecisionPlan, reason: PrecisionReason, text: str, costs: Mapping[int, float] | None = None
) -> PrecisionPlan:
    return PrecisionPlan(plan.bits, plan.since, reason, text, costs or {})


def _explain(costs: Mapping[int, float], around: Surroundings) -> str:
    figures = ", ".join(f"{bits}-bit {cost:.2f} s" for bits, cost in sorted(costs.items()))
    if around.unreachable:
        return f"expected cost of a request: {figures}; the cloud cannot be reached, so what is unsure counts as error"
    rtt_ms, rate = (around.link.rtt_s or 0.0) * 1e3, around.link.bytes_per_s or 0.0
    return f"expected cost of a request: {figures}; link {rtt_ms:.0f} ms, {rate / 1e3:.1f} kB/s"
