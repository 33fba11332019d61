"""Which release a node wants, how fast it fetches, what it has spent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from edge.updater.ledger import Ledger
from edge.updater.pace import LEAST_PIECE, Pace
from edge.updater.wanted import Known, wanted
from tests.fakes.disk import QuickDisk

OLD, NEW, NEXT = "m@1.9.0+a", "m@1.10.0+b", "m@2.0.0-rc1+c"


def known(**given: object) -> Known:
    usual: dict[str, object] = {
        "offered": {OLD: "1.9.0", NEW: "1.10.0"}, "here": {OLD: "1.9.0"}, "withdrawn": (), "bad": {}, "current": OLD,
    }  # fmt: skip
    return Known(**{**usual, **given})  # type: ignore[arg-type]


def test_the_newest_that_is_offered_or_here() -> None:
    assert wanted(known()).release == NEW
    assert wanted(known(here={NEXT: "2.0.0-rc1"})).release == NEXT  # carried here by hand
    assert wanted(known(offered={}, here={})).release == OLD


def test_neither_bad_nor_withdrawn_ones() -> None:
    assert wanted(known(bad={NEW: "crashed"})).release == OLD
    assert wanted(known(withdrawn={NEW})).release == OLD
    assert wanted(known(withdrawn={OLD}, bad={NEW: "crashed"})).release == OLD  # what serves, serves


def test_the_upstreams_word_and_the_operators() -> None:
    assert wanted(known(), active=OLD).release == OLD
    assert wanted(known(), pin=NEW, active=OLD).release == NEW
    assert wanted(known(withdrawn={OLD}), pin=OLD).release == OLD
    nowhere = wanted(known(), active=NEXT)
    assert (nowhere.release, nowhere.refused.startswith(NEXT)) == (OLD, True)
    bad = wanted(known(bad={NEW: "it crashed"}), active=NEW)
    assert bad.release == OLD
    assert "it crashed" in bad.refused


@pytest.mark.parametrize(("share", "rate", "rest"), [(1.0, None, 0.0), (0.5, None, 2.0), (0.25, None, 6.0)])
def test_a_share_of_the_time_is_a_share_of_the_link(share: float, rate: float | None, rest: float) -> None:
    assert Pace(share, rate).rest_s(1000, 2.0) == pytest.approx(rest)


def test_a_link_that_got_better_is_not_held_to_its_old_rate() -> None:
    assert Pace(0.5, 10.0).rest_s(1000, 0.1) == pytest.approx(0.1)
    assert Pace(0.5, 1e9).rest_s(1000, 2.0) == 0.0


def test_pieces_are_short_on_a_shared_link_and_never_cross_a_chunk() -> None:
    chunk = 4 << 20
    assert Pace().piece(chunk, None) == chunk
    assert Pace(0.5).piece(chunk, None) == LEAST_PIECE
    assert Pace(0.5).piece(chunk, 1e6) == 250_000
    assert Pace(0.5).piece(100, 1e6) == 100
    assert Pace(1.0, most_bytes=7).piece(chunk, 1e6) == 7
    assert Pace(1.0).piece(chunk, 1000.0) == LEAST_PIECE


def test_a_days_budget_outlives_a_restart_and_ends_with_the_day(tmp_path: Path) -> None:
    now = [datetime(2026, 5, 1, 23, tzinfo=UTC)]
    file = tmp_path / "spent.json"
    ledger = Ledger(file, lambda: now[0], QuickDisk())
    ledger.add(10)
    ledger.save()
    ledger.add(5)
    ledger.save()  # too soon
    assert Ledger(file, lambda: now[0]).spent_today == 10
    ledger.save(at_once=True)
    assert Ledger(file, lambda: now[0]).spent_today == 15
    now[0] += timedelta(hours=2)
    assert ledger.spent_today == 0
    file.write_text("nonsense")
    assert Ledger(file, lambda: now[0]).spent_today == 0
