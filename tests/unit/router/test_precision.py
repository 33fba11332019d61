"""The precision plan: which link favours which precision, and what keeps it calm."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from router.decision import LinkView, UpstreamView
from router.precision import (
    PrecisionFigures,
    PrecisionPlan,
    PrecisionReason,
    PrecisionSettings,
    Surroundings,
    plan_precision,
)

# FINDINGS-like figures: 4-bit decodes faster and is unsure more often.
FOUR = PrecisionFigures(4, first_token_s=0.26, per_token_s=0.011, escalation_share=0.40, expected_error=0.05)
EIGHT = PrecisionFigures(8, first_token_s=0.24, per_token_s=0.018, escalation_share=0.30, expected_error=0.05)
BOTH = (FOUR, EIGHT)
CLOUD = UpstreamView(first_token_s=0.1, per_token_s=0.02)
WIDE = Surroundings(LinkView(0.01, 0.002, 1e7), CLOUD)
NARROW = Surroundings(LinkView(0.4, 0.1, 1e3), CLOUD)
DEAD = Surroundings(LinkView(down=True), CLOUD)
SETTINGS = PrecisionSettings(margin=0.05)


def plan(bits: int, around: Surroundings, now: float = 100.0, since: float = 0.0, **changes: object) -> PrecisionPlan:
    before = PrecisionPlan(bits, since, PrecisionReason.STILL_BEST)
    figures = changes.pop("figures", BOTH)
    return plan_precision(before, figures, around, replace(SETTINGS, **changes), now)  # type: ignore[arg-type]


def test_a_wide_link_favours_four_bits_and_escalation() -> None:
    planned = plan(8, WIDE)
    assert (planned.bits, planned.since, planned.changed) == (4, 100.0, True)
    assert planned.reason is PrecisionReason.ESCALATING_IS_CHEAP


def test_a_narrow_link_favours_eight_bits_at_home() -> None:
    planned = plan(4, NARROW)
    assert (planned.bits, planned.reason) == (8, PrecisionReason.ESCALATING_IS_DEAR)


def test_a_dead_cloud_favours_eight_bits_at_home() -> None:
    planned = plan(4, DEAD)
    assert (planned.bits, planned.reason) == (8, PrecisionReason.CLOUD_UNREACHABLE)


@pytest.mark.parametrize(
    "around",
    [Surroundings(WIDE.link, replace(CLOUD, admits=False)), Surroundings(WIDE.link, replace(CLOUD, configured=False))],
)
def test_an_open_breaker_or_no_upstream_counts_as_unreachable(around: Surroundings) -> None:
    assert plan(4, around).reason is PrecisionReason.CLOUD_UNREACHABLE


def test_the_costs_are_what_the_formula_says() -> None:
    costs = plan(8, WIDE).costs_s
    upstream = 0.01 + 2000 / 1e7 + 0.1 + 31 * 0.02
    assert costs[4] == pytest.approx(0.26 + 31 * 0.011 + 0.40 * upstream + 4.0 * 0.05)
    assert costs[8] == pytest.approx(0.24 + 31 * 0.018 + 0.30 * upstream + 4.0 * 0.05)
    offline = plan(8, DEAD).costs_s
    assert offline[8] == pytest.approx(0.24 + 31 * 0.018 + 4.0 * 0.35)


def test_the_text_names_both_costs_and_the_link() -> None:
    assert plan(8, WIDE).text == "expected cost of a request: 4-bit 1.09 s, 8-bit 1.22 s; link 10 ms, 10000.0 kB/s"


@pytest.mark.parametrize(
    "link", [LinkView(), LinkView(rtt_s=0.01), LinkView(bytes_per_s=1e6), LinkView(math.nan, 0.0, 1e6)]
)
@pytest.mark.parametrize("bits", [4, 8])
def test_an_unknown_link_changes_nothing(link: LinkView, bits: int) -> None:
    planned = plan(bits, Surroundings(link, CLOUD))
    assert (planned.bits, planned.since, planned.reason) == (bits, 0.0, PrecisionReason.LINK_UNKNOWN)


def test_a_cloud_never_measured_changes_nothing() -> None:
    assert plan(8, Surroundings(WIDE.link, UpstreamView())).reason is PrecisionReason.FIGURES_UNKNOWN


def test_a_broken_figure_changes_nothing() -> None:
    broken = (replace(FOUR, per_token_s=math.nan), EIGHT)
    assert plan(8, WIDE, figures=broken).reason is PrecisionReason.FIGURES_UNKNOWN


def test_a_small_gain_is_not_worth_a_change() -> None:
    planned = plan(8, WIDE, margin=0.5)
    assert (planned.bits, planned.reason) == (8, PrecisionReason.NO_CLEAR_GAIN)


def test_a_recent_change_is_given_time() -> None:
    planned = plan(8, WIDE, now=4.9)
    assert (planned.bits, planned.reason) == (8, PrecisionReason.DWELL)
    assert planned.text.endswith("the last change is too recent")
    assert plan(8, WIDE, now=5.0).bits == 4


def test_the_start_is_no_change_to_wait_after() -> None:
    assert plan_precision(PrecisionPlan(8, 0.0), BOTH, WIDE, SETTINGS, 0.1).bits == 4


def test_where_precision_does_not_matter_it_stays_at_eight() -> None:
    as_fast = (FOUR, replace(EIGHT, per_token_s=0.0115))
    planned = plan(8, WIDE, figures=as_fast)
    assert (planned.bits, planned.reason) == (8, PrecisionReason.DOES_NOT_MATTER)
    assert plan(8, replace(WIDE, both_fit=False), figures=as_fast).reason is not PrecisionReason.DOES_NOT_MATTER


def test_eight_bits_a_little_slower_are_kept_but_not_returned_to() -> None:
    a_little_slower = (FOUR, replace(EIGHT, first_token_s=0.26, per_token_s=0.0115))
    assert plan(8, WIDE, figures=a_little_slower).reason is PrecisionReason.DOES_NOT_MATTER
    assert plan(4, WIDE, figures=a_little_slower).reason is not PrecisionReason.DOES_NOT_MATTER


def test_a_pin_beats_everything() -> None:
    planned = plan(8, WIDE, now=0.1, pinned=4)
    assert (planned.bits, planned.reason) == (4, PrecisionReason.PINNED)
    assert plan(8, WIDE, pinned=8).bits == 8


def test_what_is_not_there_is_left_at_once() -> None:
    assert plan(4, WIDE, now=0.1, figures=(EIGHT,)).bits == 8
    assert plan(2, Surroundings(LinkView(), CLOUD), now=0.1).bits == 8
    assert plan(2, WIDE, now=0.1).bits == 4
    assert plan(8, WIDE, figures=()).bits == 8


@pytest.mark.parametrize("here", [True, False])
def test_a_node_that_nothing_helps_wants_eight_from_the_start(here: bool) -> None:
    unfitted = tuple(replace(option, escalation_share=math.nan) for option in BOTH)
    figures = (unfitted[0], replace(unfitted[1], here=here))
    for around in (Surroundings(LinkView(), replace(CLOUD, configured=False)), WIDE):
        planned = plan_precision(PrecisionPlan(4, 0.0), figures, around, SETTINGS, 0.1)
        assert (planned.bits, planned.wanted) == (8 if here else 4, 8)
    settled = plan_precision(PrecisionPlan(4, 0.0, wanted=4), figures, WIDE, SETTINGS, 0.1)
    assert (settled.bits, settled.reason) == (4, PrecisionReason.UNCALIBRATED)


@pytest.mark.parametrize("around", [WIDE, NARROW, DEAD])
def test_a_precision_that_is_not_here_is_weighed_wanted_and_not_held(around: Surroundings) -> None:
    figures = (FOUR, replace(EIGHT, here=False, assumed=True))
    there = plan(4, around)
    planned = plan(4, around, figures=figures)
    assert (planned.bits, planned.wanted, planned.costs_s) == (4, there.bits, there.costs_s)
    if there.bits == 8:
        assert planned.reason is PrecisionReason.NOT_HERE_YET
        assert planned.text == f"8-bit is not here yet, so 4-bit is held: {there.text}; the speed of 8-bit is assumed"
        arrived = plan_precision(planned, BOTH, around, SETTINGS, 100.5)
        assert (arrived.bits, arrived.changed, arrived.since) == (8, True, 100.5)


def test_equal_costs_favour_more_bits() -> None:
    same = (FOUR, replace(FOUR, bits=8, first_token_s=FOUR.first_token_s))
    assert plan(8, replace(WIDE, both_fit=False), figures=same).bits == 8
