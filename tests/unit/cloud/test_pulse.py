"""A rank that hangs is told from one that is slow, and from a host that was asleep itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cloud.host.supervisor import STALL_FACTOR, Pulse
from cloud.rank.beat import Beat, beat_path, read_beat, write_beat

BEAT = Beat(rank=1, pid=7, state="ready", turns=5, at=100.0)


def test_a_fresh_beat_is_well() -> None:
    assert Pulse(timeout_s=2.0, interval_s=0.5).hung((BEAT,), 101.0) is None


def test_an_old_beat_is_a_stopped_process() -> None:
    pulse = Pulse(timeout_s=2.0, interval_s=0.5)
    assert pulse.hung((BEAT,), 101.5) is None
    found = pulse.hung((BEAT,), 102.1)
    assert found is not None
    assert found[0] is BEAT
    assert "no sign of life" in found[1]


def test_beats_without_steps_are_a_hung_group() -> None:
    pulse, now = Pulse(timeout_s=2.0, interval_s=0.5), 100.0
    while now < 100.0 + 2.0 * STALL_FACTOR:
        assert pulse.hung((replace(BEAT, at=now),), now) is None
        now += 0.5
    now += 0.5
    found = pulse.hung((replace(BEAT, at=now),), now)
    assert found is not None
    assert "made no step" in found[1]


def test_a_step_starts_the_patience_anew() -> None:
    pulse, now = Pulse(timeout_s=2.0, interval_s=0.5), 100.0
    for turn in range(100):
        assert pulse.hung((replace(BEAT, at=now, turns=turn // 20),), now) is None
        now += 0.5


def test_a_host_that_was_asleep_looks_again_before_it_blames_a_rank() -> None:
    pulse = Pulse(timeout_s=2.0, interval_s=0.5)
    assert pulse.hung((BEAT,), 100.5) is None
    assert pulse.hung((BEAT,), 160.0) is None
    assert pulse.hung((replace(BEAT, at=160.3),), 160.5) is None


def test_a_beat_survives_the_disk_and_half_a_file_is_no_beat(tmp_path: Path) -> None:
    write_beat(tmp_path, BEAT)
    assert read_beat(tmp_path, 1) == BEAT
    assert read_beat(tmp_path, 0) is None
    beat_path(tmp_path, 1).write_text('{"rank": 1, "pid"')
    assert read_beat(tmp_path, 1) is None
