"""The slots: trials, proofs, returns; and the file they are kept in."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.slot_file import SLOTS_NAME, SlotFile
from edge.slots import MOST_BOOTS, MOST_CRASHES, Slots
from tests.fakes.disk import QuickDisk

A, B, C = "m@1.0.0+a", "m@1.1.0+b", "m@1.2.0+c"


def test_a_release_on_trial_that_proves_itself_takes_over() -> None:
    slots = Slots(current=A).offered(B).starting()
    assert (slots.to_start, slots.boots, slots.held) == (B, 1, {A, B})
    slots = slots.proved(B, 4)
    assert slots == Slots(current=B, previous=A, precision=4)
    assert slots.proved(B, 8) == Slots(current=B, previous=A, precision=8)


def test_two_crashes_end_a_trial_and_it_is_not_tried_again() -> None:
    slots = Slots(current=B, previous=A).offered(C)
    for crash in range(MOST_CRASHES):
        assert not slots.exhausted, crash
        slots = slots.starting().crashed()
    assert "crashed 2 times" in slots.exhausted
    slots = slots.failed(slots.exhausted)
    assert (slots.to_start, slots.previous, set(slots.bad)) == (B, A, {C})
    assert slots.offered(C) == slots
    assert slots.forgiven(C).offered(C).trial == C


def test_starts_that_come_to_nothing_end_a_trial_only_where_there_is_a_way_back() -> None:
    lone, other = Slots().offered(A), Slots(current=A).offered(B)
    for _ in range(MOST_BOOTS):
        lone, other = lone.starting(), other.starting()
    assert not lone.exhausted
    assert "came to nothing" in other.exhausted
    assert not Slots(current=A).offered(B).starting().stopped().boots


def test_what_cannot_be_served_any_more_gives_way_to_the_one_before() -> None:
    slots = Slots(current=B, previous=A).lost("rotten")
    assert (slots.current, slots.previous, slots.bad) == (A, "", {B: "rotten"})
    assert slots.lost("as well").to_start == ""


def test_what_is_no_longer_on_disk_is_no_longer_held() -> None:
    slots = Slots(current=B, previous=A, trial=C, boots=1, crashes=1)
    assert slots.among({A, C}) == Slots(current=A, trial=C, boots=1, crashes=1)
    assert slots.among({B}) == Slots(current=B)


@given(st.lists(st.sampled_from(["offer", "start", "crash", "prove", "fail", "lose", "stop", "forgive"]), max_size=40))
def test_laws_of_the_slots(steps: list[str]) -> None:
    """Never a bad release to start; never more than three held; a trial ends within its bounds."""
    slots, names = Slots(), [A, B, C]
    for index, step in enumerate(steps):
        name = names[index % 3]
        if slots.exhausted:
            slots = slots.failed(slots.exhausted)
        slots = {
            "offer": lambda: slots.offered(name),  # noqa: B023
            "start": slots.starting,
            "crash": slots.crashed,
            "prove": lambda: slots.proved(slots.trial) if slots.trial else slots,  # noqa: B023
            "fail": lambda: slots.failed("no"),  # noqa: B023
            "lose": lambda: slots.lost("gone") if slots.current else slots,  # noqa: B023
            "stop": slots.stopped,
            "forgive": lambda: slots.forgiven(name),  # noqa: B023
        }[step]()
        assert slots.to_start not in slots.bad
        assert len(slots.held) <= 3
        assert slots.trial != slots.current or not slots.trial
        assert slots.crashes <= MOST_CRASHES


def test_the_file_keeps_every_model_and_survives_nonsense(tmp_path: Path) -> None:
    file = SlotFile(tmp_path, QuickDisk())
    assert file.read("m") == Slots()
    file.change("m", lambda slots: slots.offered(A).starting())
    file.change("other", lambda slots: slots.proved(B, 8).failed("never"))
    assert SlotFile(tmp_path).read("m") == Slots(trial=A, boots=1)
    assert SlotFile(tmp_path).models() == ("m", "other")
    bad = file.change("m", lambda slots: slots.failed("it broke"))
    assert SlotFile(tmp_path).read("m") == bad
    for nonsense in ("", "{", "[]", '{"models": {"m": 3}}', '{"models": {"m": {"boots": "x"}}}', "[" * 100_000):
        (tmp_path / SLOTS_NAME).write_text(nonsense)
        assert file.read("m") == Slots()
        assert file.change("m", lambda slots: slots.offered(A)).trial == A


def test_a_change_that_finds_no_room_changes_nothing(tmp_path: Path) -> None:
    def full(_operation: str, path: Path) -> None:
        raise OSError(28, "No space left on device", str(path))

    SlotFile(tmp_path).change("m", lambda slots: slots.offered(A))
    with pytest.raises(OSError, match="No space"):
        SlotFile(tmp_path, QuickDisk(full)).change("m", lambda slots: slots.failed("x"))
    assert SlotFile(tmp_path).read("m").trial == A
