"""Recorded links, held against sums that were done by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from bench.transfer.traces import DATA_FILE, Trace, TraceError, choose, read_traces

CONSTANT = Trace("constant", (0.0,), (1000.0,), 10.0)
# 4 s at 100 B/s, 4 s of nothing, 2 s at 300 B/s: 1000 bytes in 10 s.
STEPS = Trace("steps", (0.0, 4.0, 8.0), (100.0, 0.0, 300.0), 10.0)


def test_a_constant_link_takes_bytes_over_rate() -> None:
    assert CONSTANT.seconds_for(500) == 0.5
    assert CONSTANT.seconds_for(123_456) == pytest.approx(123.456)
    assert CONSTANT.times(20).seconds_for(500) == pytest.approx(0.025)
    assert CONSTANT.mean_bytes_per_s == 1000


@pytest.mark.parametrize(
    ("count", "start", "seconds"),
    [
        (0, 0.0, 0.0),
        (400, 0.0, 4.0),
        (401, 0.0, 8.0 + 1 / 300),  # through the gap
        (1000, 0.0, 10.0),
        (1100, 0.0, 11.0),
        (10_200, 0.0, 102.0),  # ten rounds, and two seconds of the next
        (300, 8.0, 1.0),
        (700, 8.0, 3.0),  # the rest of this round and a second of the next
        (150, 9.5, 0.5),
        (100, 15.0, 3.0 + 1 / 3),  # begins in the gap of the second round
    ],
)
def test_a_changing_link_takes_what_its_pieces_carry(count: float, start: float, seconds: float) -> None:
    assert STEPS.seconds_for(count, start) == pytest.approx(seconds)


def test_the_rate_in_force_and_its_next_change_repeat() -> None:
    assert [STEPS.rate_at(at) for at in (0, 3.9, 4, 7.9, 8, 9.9, 10, 14, 18)] == [100, 100, 0, 0, 300, 300, 100, 0, 300]
    assert [STEPS.next_change(at) for at in (0, 4, 7, 8, 10, 18)] == [4, 8, 8, 10, 14, 20]


@pytest.mark.parametrize(
    ("starts", "rates", "period"),
    [((), (), 1.0), ((1.0,), (1.0,), 2.0), ((0.0, 0.0), (1.0, 1.0), 2.0), ((0.0,), (0.0,), 1.0), ((0.0,), (1.0,), 0.0)],
)
def test_an_impossible_trace_is_refused(starts: tuple[float, ...], rates: tuple[float, ...], period: float) -> None:
    with pytest.raises(TraceError):
        Trace("bad", starts, rates, period)


def data(folder: Path, *rows: dict[str, object]) -> Path:
    (folder / DATA_FILE).parent.mkdir(parents=True)
    with gzip.open(folder / DATA_FILE, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return folder


def test_traces_are_read_from_the_data_set(tmp_path: Path) -> None:
    row = {"name": "bus", "t_s": [1.0, 3.0, 4.0], "mbps": [8.0, 0.8, 4.0]}
    (trace,) = read_traces(data(tmp_path, row))
    assert (trace.name, trace.starts, trace.period_s) == ("bus", (0.0, 2.0, 3.0), 4.0)
    assert trace.rates == pytest.approx((1e6, 1e5, 5e5))


def test_a_missing_or_broken_data_set_says_which(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"hsdpa-norway-3g.jsonl.gz is not there"):
        read_traces(tmp_path)
    with pytest.raises(TraceError, match="cannot be read as traces"):
        read_traces(data(tmp_path, {"name": "bus"}))


def test_a_choice_is_the_same_for_the_same_seed() -> None:
    traces = [Trace(str(number), (0.0,), (1.0,), 1.0) for number in range(80)]
    first = choose(traces, 12, 0)
    assert len({trace.name for trace in first}) == 12
    assert first == choose(traces, 12, 0)
    assert first != choose(traces, 12, 1)
    assert choose(traces, 100, 0) == traces
