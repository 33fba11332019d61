"""The demo's own arithmetic and eyes: records, figures, the event log, the picture, the table."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bench.link import Count
from weir.demo.errors import DemoError
from weir.demo.picture import draw
from weir.demo.record import Record, prove_precision
from weir.demo.run import _faults
from weir.demo.show import Show
from weir.demo.summary import Outcome, sentences, table
from weir.demo.watch import EventLog

EDGE = Record("cascade", "city", "Where to?", "Cork", 100.0, "edge", "confident", 4, "nested-4", "digest4", tokens=30)
CLOUD = Record("cascade", "city", "And?", "Oslo", 900.0, "cloud", "low_confidence", 32, "float32", "c", tokens=40)
ALONE = (
    replace(EDGE, act="cloud_only", answer="Cork.", ms=800.0, tier="cloud", reason="cloud_only", tokens=31),
    replace(CLOUD, act="cloud_only", ms=1000.0, reason="cloud_only"),
)
DEGRADED = replace(EDGE, act="cut", degraded=True, reason="upstream_error", precision=8, weight_digest="digest8")


def outcome(*more: Record) -> Outcome:
    wide, narrow = Count(0, 1_000_000, 1.0), Count(0, 4_000, 1.0)
    zero = Count(0, 0, 0.0)
    return Outcome(
        records=[EDGE, CLOUD, *ALONE, DEGRADED, *more],
        switches=[{"precision": 8}],
        link_wide=wide.since(zero),
        link_narrow=narrow.since(zero),
        resumed=True,
        calibration={"n": 150},
    )


def test_the_figures_are_those_the_issue_names() -> None:
    figures = outcome().as_json()
    json.dumps(figures)
    assert (figures["requests"], figures["failed"], figures["edge_share"]) == (5, 0, 0.5)
    assert figures["mean_ms"] == {"cascade": 500.0, "cloud_only": 900.0}
    assert figures["max_ms"] == {"cascade": 900.0, "cloud_only": 1000.0}
    assert figures["cloud_tokens"] == {"cascade": 40, "cloud_only": 71}
    assert (figures["precision_switches"], figures["degraded_answers"], figures["resumed"]) == (1, 1, True)
    assert figures["link"] == {"bytes_per_s_wide": 1_000_000, "bytes_per_s_narrow": 4_000}
    assert figures["calibration"]["n"] == 150
    assert figures["per_request"][0]["weight_digest"] == "digest4"
    assert figures["weight_digests"] == {"4": ["digest4"], "8": ["digest8"]}
    assert figures["same_as_cloud"] == {"edge_answers": 1, "same": 1}
    assert {"versions", "machine"} <= set(figures)


def test_a_failed_request_counts_as_failed_and_has_no_latency() -> None:
    failed = Record("cascade", "city", "Lost?", "", 30_000.0, error="DeadlineExceeded: too late")
    figures = outcome(failed).as_json()
    assert (figures["failed"], figures["max_ms"]["cascade"]) == (1, 900.0)
    assert _faults(figures) == ["1 requests failed"]


def test_a_run_that_shows_everything_has_no_fault() -> None:
    assert _faults(outcome().as_json()) == []
    nothing = Outcome(records=[EDGE])
    assert len(_faults(nothing.as_json())) == 3


def test_keeping_a_precision_is_a_fault_unless_the_router_says_that_it_does_not_matter() -> None:
    figures = {**outcome().as_json(), "precision_switches": 0}
    assert _faults(figures) == ["the router did not change the precision"]
    assert _faults({**figures, "precision_plan": "no_clear_gain: …"}) == ["the router did not change the precision"]
    assert _faults({**figures, "precision_plan": "does_not_matter: 8-bit is as fast here"}) == []


def test_the_same_weights_under_two_precisions_are_a_fault() -> None:
    with pytest.raises(DemoError, match="same weights"):
        prove_precision([EDGE, replace(EDGE, precision=8)])
    with pytest.raises(DemoError, match="without saying"):
        prove_precision([replace(EDGE, weight_digest="")])


def event(name: str, **fields: object) -> str:
    content = json.dumps({"event": name, "node": "edge", "at": 1.0, **fields}, separators=(",", ":"))
    return f"2026-01-01 00:00:00,000 weir.edge.events INFO {content}\n"


def test_the_event_log_is_read_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "edge.log"
    path.write_text("starting\n" + event("EngineChanged", available=True, precision=8))
    log = EventLog(path)
    log.look()
    assert log.switches == []
    plan = {"bits": 4, "reason": "escalating_is_cheap", "text": "4-bit 0.50 s"}
    activated = {"precision": 4, "weight_digest": "d", "load_ms": 12.0, "why": "escalating_is_cheap: 4-bit 0.50 s"}
    whole = event("PrecisionChanged", before=8, plan=plan) + event("Activated", **activated)
    with path.open("a") as file:
        file.write(whole[:-20])
    log.look()
    assert (log.plan, log.switches) == ("escalating_is_cheap: 4-bit 0.50 s", [])
    with path.open("a") as file:
        file.write(whole[-20:] + event("ThresholdsChanged", precision=4, threshold_end=0.7, threshold_prefix=0.8))
    log.look()
    (switch,) = log.switches
    assert (switch.before, switch.precision, switch.weight_digest) == (8, 4, "d")
    assert log.thresholds == {4: 0.7}


def test_lines_of_others_in_the_log_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "edge.log"
    path.write_text('{"event": broken\nx {"event":"Activated"\n\n' + event("Unheard", value=1))
    log = EventLog(path)
    log.look()
    assert log.switches == []


def test_the_picture_is_drawn_for_every_kind_of_record(tmp_path: Path) -> None:
    failed = Record("back", "city", "Lost?", "", 5.0, error="Unavailable: gone")
    draw(outcome(failed, replace(CLOUD, act="narrow")).records, tmp_path / "latency.png")
    assert (tmp_path / "latency.png").read_bytes().startswith(b"\x89PNG")


def test_a_row_shows_tier_precision_confidence_reason_and_time() -> None:
    sink = io.StringIO()
    show = Show(Console(file=sink, width=136))
    show.header()
    show.record(replace(EDGE, confidence=0.812))
    show.record(DEGRADED)
    show.record(Record("cut", "city", "Lost [bold]?", "", 5.0, error="Unavailable: gone"))
    text = sink.getvalue()
    for word in ("question", "edge", "0.81", "confident", "100", "degraded: upstream_error", "Unavailable", "[bold]"):
        assert word in text


def test_the_summary_says_in_words_what_was_saved() -> None:
    figures = outcome().as_json()
    sink = io.StringIO()
    Console(file=sink, width=136).print(table(figures))
    assert "answered on the edge" in sink.getvalue()
    text = " ".join(sentences(figures))
    assert "44% of the cloud's tokens saved" in text
    assert "escalation resumed" in text
