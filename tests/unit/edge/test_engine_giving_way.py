"""A prompt that would hold up streams waits for them, but neither past its deadline nor for ever."""

from __future__ import annotations

from functools import partial

from edge.engine.giving_way import GivingWay


def test_it_waits_for_the_streams_that_run_then_and_not_for_those_that_come_later() -> None:
    lasts = partial(GivingWay().lasts, creep_s=300.0, alone_s=10.0)
    assert lasts(5.0, 100.0, streams_s=40.0)
    assert lasts(44.0, 61.0, streams_s=1.0)
    assert not lasts(45.0, 60.0, streams_s=30.0)


def test_where_they_end_too_late_it_waits_while_small_chunks_would_do() -> None:
    lasts = partial(GivingWay().lasts, creep_s=20.0, alone_s=100.0, streams_s=1000.0)
    assert lasts(0.0, 100.0)
    assert lasts(59.0, 41.0)
    assert not lasts(61.0, 39.0), "neither way is time enough to wait any longer"


def test_a_deadline_far_away_is_no_reason_to_wait_for_ever() -> None:
    lasts = partial(GivingWay().lasts, creep_s=60.0, alone_s=10.0, streams_s=5.0)
    assert lasts(0.0, 600.0)
    assert not lasts(5.0, 595.0), "there are always streams"


def test_it_does_not_wait_where_there_is_no_time_either_way() -> None:
    assert not GivingWay().lasts(0.0, 100.0, creep_s=300.0, alone_s=10.0, streams_s=81.0)
    assert GivingWay().lasts(0.0, 100.0, creep_s=300.0, alone_s=10.0, streams_s=79.0)
    way = GivingWay()
    assert not way.lasts(0.0, 100.0, creep_s=60.0, alone_s=60.0, streams_s=10.0)
    assert not way.lasts(1.0, 99.0, creep_s=60.0, alone_s=1.0, streams_s=1.0), "once in haste it stays so"
