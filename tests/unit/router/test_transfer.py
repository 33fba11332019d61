"""The transfer plan: what is fetched, how fast, what stops it, and what it says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router import transfer
from router.precision import PrecisionPlan, PrecisionReason
from router.transfer import (
    RULES,
    Stock,
    TransferPlan,
    TransferReason,
    TransferSettings,
    TransferView,
    duration,
    plan_transfer,
    size,
)

EMPTY = Stock("m@1.0.0+0123456789ab", four_missing_bytes=78_000_000, eight_missing_bytes=70_000_000)
FOUR_HERE = replace(EMPTY, four=True, four_missing_bytes=0)
ALL_HERE = replace(FOUR_HERE, eight=True, eight_missing_bytes=0)
EIGHT_ALONE = Stock("m@1.0.0+0123456789ab", eight_missing_bytes=148_000_000, precisions=(8,))
LINK = TransferView(bytes_per_s=1e6)
SERVING = replace(LINK, serving=True)
PAYS = PrecisionPlan(4, 0.0, PrecisionReason.NOT_HERE_YET, "", {4: 2.0, 8: 1.5}, wanted=8)
PAYS_NOT = PrecisionPlan(4, 0.0, PrecisionReason.STILL_BEST, "", {4: 1.0, 8: 1.5}, wanted=4)


def plan(stock: Stock, view: TransferView, **settings: object) -> TransferPlan:
    return plan_transfer(stock, view, TransferSettings(**settings), 7.0)  # type: ignore[arg-type]


def test_an_empty_node_fetches_four_first_at_full_rate() -> None:
    planned = plan(EMPTY, LINK)
    assert (planned.fetch, planned.reason) == ("four", TransferReason.NOTHING_SERVES)
    assert (planned.share, planned.bytes_per_s, planned.most_bytes, planned.at) == (1.0, None, 78_000_000, 7.0)
    assert planned.text == "nothing serves here yet; 78.0 MB to go at full rate, about 78 s"


def test_four_comes_first_also_where_eight_is_pinned_or_the_link_metered() -> None:
    assert plan(EMPTY, LINK, pinned=8).fetch == "four"
    assert plan(EMPTY, LINK, metered=True).reason is TransferReason.NOTHING_SERVES


def test_a_newer_release_comes_within_the_share_while_the_other_serves() -> None:
    planned = plan(EMPTY, SERVING, bandwidth_share=0.25)
    assert (planned.fetch, planned.reason) == ("four", TransferReason.NEWER_RELEASE)
    assert (planned.share, planned.bytes_per_s) == (0.25, 250_000.0)


def test_an_unknown_link_is_paced_by_the_share_alone() -> None:
    planned = plan(FOUR_HERE, TransferView(serving=True), bandwidth_share=0.25)
    assert (planned.fetch, planned.share, planned.bytes_per_s) == ("eight", 0.25, None)
    assert plan(FOUR_HERE, replace(SERVING, bytes_per_s=float("nan"))).bytes_per_s is None


def test_pinned_at_four_leaves_the_rest_away() -> None:
    planned = plan(FOUR_HERE, SERVING, pinned=4)
    assert (planned.fetch, planned.reason) == (None, TransferReason.PINNED_FOUR)
    assert plan(EMPTY, LINK, pinned=4).fetch == "four"
    assert plan(EIGHT_ALONE, LINK, pinned=4).fetch is None
    assert plan(ALL_HERE, SERVING, pinned=4).reason is TransferReason.COMPLETE


def test_pinned_at_eight_fetches_it_on_any_link_within_the_share() -> None:
    planned = plan(FOUR_HERE, replace(SERVING, plan=PAYS_NOT), pinned=8, metered=True)
    assert (planned.fetch, planned.reason, planned.bytes_per_s) == ("eight", TransferReason.PINNED_EIGHT, 500_000.0)


def test_a_metered_link_fetches_eight_only_where_it_clearly_pays() -> None:
    assert plan(FOUR_HERE, SERVING, metered=True).reason is TransferReason.METERED
    stays = plan(FOUR_HERE, replace(SERVING, plan=PAYS_NOT), metered=True)
    assert (stays.fetch, stays.reason) == (None, TransferReason.METERED)
    assert stays.text == (
        "the link is metered and 4-bit does (expected cost of a request: 4-bit 1.00 s, 8-bit 1.50 s): "
        "70.0 MB for 8-bit are not fetched; pin 8 to have it"
    )
    pays = plan(FOUR_HERE, replace(SERVING, plan=PAYS), metered=True)
    assert (pays.fetch, pays.reason) == ("eight", TransferReason.EIGHT_PAYS)
    assert pays.text == (
        "8-bit is expected to pay (expected cost of a request: 4-bit 2.00 s, 8-bit 1.50 s); "
        "70.0 MB to go at 50% of the link, about 2 min"
    )


def test_a_wish_without_figures_does_not_pay_on_a_metered_link() -> None:
    unweighed = PrecisionPlan(4, 0.0, PrecisionReason.NOT_HERE_YET, wanted=8)
    assert plan(FOUR_HERE, replace(SERVING, plan=unweighed), metered=True).reason is TransferReason.METERED
    assert plan(FOUR_HERE, replace(SERVING, plan=unweighed)).reason is TransferReason.EIGHT_PAYS


def test_eight_that_is_as_fast_is_fetched_unless_bytes_cost() -> None:
    equal = PrecisionPlan(4, 0.0, PrecisionReason.DOES_NOT_MATTER)
    assert plan(FOUR_HERE, replace(SERVING, plan=equal)).reason is TransferReason.DOES_NOT_MATTER
    assert plan(FOUR_HERE, replace(SERVING, plan=equal), metered=True).fetch is None


def test_free_bytes_bring_eight_ahead_of_need() -> None:
    planned = plan(FOUR_HERE, replace(SERVING, plan=PAYS_NOT))
    assert (planned.fetch, planned.reason, planned.share) == ("eight", TransferReason.AHEAD_OF_NEED, 0.5)


def test_a_budget_bounds_what_is_fetched_and_then_stops_it() -> None:
    some = plan(EMPTY, replace(LINK, spent_today_bytes=40_000_000), bytes_per_day=50_000_000)
    assert (some.fetch, some.most_bytes) == ("four", 10_000_000)
    assert some.text.endswith("; 10.0 MB of the day's budget left")
    spent = plan(EMPTY, replace(LINK, spent_today_bytes=60_000_000), bytes_per_day=50_000_000)
    assert (spent.fetch, spent.reason) == (None, TransferReason.BUDGET_SPENT)
    assert spent.text == "60.0 MB of 50.0 MB a day are used up: more tomorrow, or raise bytes_per_day"


def test_a_part_that_other_releases_share_costs_no_budget() -> None:
    shared = replace(EMPTY, four_missing_bytes=0)
    planned = plan(shared, replace(SERVING, spent_today_bytes=9), bytes_per_day=9)
    assert (planned.fetch, planned.most_bytes) == ("four", 0)
    assert planned.text == f"another release serves until {EMPTY.release} can; all of it is here already"


def test_a_full_disk_is_not_begun_with() -> None:
    planned = plan(FOUR_HERE, replace(SERVING, disk_free_bytes=69_999_999))
    assert (planned.fetch, planned.reason) == (None, TransferReason.NO_ROOM)
    assert plan(FOUR_HERE, replace(SERVING, disk_free_bytes=70_000_000)).fetch == "eight"


def test_eight_that_memory_cannot_hold_is_not_fetched() -> None:
    small = replace(SERVING, eight_fits=False)
    assert plan(FOUR_HERE, small, pinned=8).reason is TransferReason.TOO_BIG
    assert plan(EMPTY, small).fetch == "four"
    assert plan(EIGHT_ALONE, small).reason is TransferReason.TOO_BIG


def test_a_release_of_one_precision_is_whole_with_it() -> None:
    first = plan(EIGHT_ALONE, LINK)
    assert (first.fetch, first.share, first.reason) == ("eight", 1.0, TransferReason.NOTHING_SERVES)
    assert plan(replace(EIGHT_ALONE, eight=True, eight_missing_bytes=0), SERVING).reason is TransferReason.COMPLETE
    four_alone = replace(FOUR_HERE, precisions=(4,), eight_missing_bytes=0)
    assert plan(four_alone, SERVING).reason is TransferReason.COMPLETE
    assert plan(ALL_HERE, SERVING).reason is TransferReason.COMPLETE


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"pinned": 5}, "pinned"),
        ({"bandwidth_share": 0.0}, "bandwidth_share"),
        ({"bytes_per_day": -1}, "bytes_per_day"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, object], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        TransferSettings(**changes)  # type: ignore[arg-type]


def test_every_rule_is_listed() -> None:
    listed = {rule.__name__ for rule in RULES}
    takers = {
        name
        for name, thing in vars(transfer).items()
        if callable(thing) and getattr(thing, "__annotations__", {}).get("case") == "Case"
    }
    assert takers == listed


def test_sizes_and_durations_read_well() -> None:
    assert [size(count) for count in (12, 1200, 78e6, 1.5e9, 2e12)] == ["12 B", "1.2 kB", "78.0 MB", "1.5 GB", "2.0 TB"]
    assert [duration(s) for s in (5, 300, 10_000)] == ["5 s", "5 min", "3 h"]
