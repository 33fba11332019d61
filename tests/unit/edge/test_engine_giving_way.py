"""A prompt that would hold up streams waits for them, but neither past its deadline nor for ever."""

from __future__ import annotations

from functools import partial

from edge.engine.giving_way import GivingWay


def test_it_waits_while_it_could_still_be_read_beside_the_streams() -> None:
    way = GivingWay()
    lasts = partial(way.lasts, creep_s=20.0, alone_s=100.0, streams_s=1000.0)
    assert lasts(0.0, 100.0)
    assert lasts(59.0, 41.0)
    assert not lasts(61.0, 39.0), "neither way is time enough to wait any longer"


def test_it_waits_for_those_that_end_early_enough_even_where_it_could_not_be_read_beside_them() -> None:
    way = GivingWay()
    lasts = partial(way.lasts, creep_s=300.0, alone_s=10.0)
    assert lasts(5.0, 100.0, streams_s=40.0)
    assert lasts(44.0, 61.0, streams_s=1.0)
    assert not lasts(45.0, 60.0, streams_s=30.0), "those that came later are not waited for"


def test_it_does_not_wait_for_streams_that_end_too_late() -> None:
    assert not GivingWay().lasts(0.0, 100.0, creep_s=300.0, alone_s=10.0, streams_s=81.0)
    assert GivingWay().lasts(0.0, 100.0, creep_s=300.0, alone_s=10.0, streams_s=79.0)


def test_it_hurries_for_good() -> None:
    way = GivingWay()
    assert not way.lasts(0.0, 100.0, creep_s=60.0, alone_s=60.0, streams_s=10.0)
    assert not way.lasts(1.0, 99.0, creep_s=60.0, alone_s=1.0, streams_s=1.0)
    assert way.lasts(2.0, 98.0, creep_s=40.0, alone_s=1.0, streams_s=1.0), "by now there is time for small chunks"
