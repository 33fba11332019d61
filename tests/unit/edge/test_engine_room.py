"""Where other weights find room: the verdict is the figures'."""

from __future__ import annotations

import pytest

from edge.engine.room import Memory, Room, room_for

MIB = 1 << 20
PLENTY = 10_000 * MIB


@pytest.mark.parametrize(
    ("needed", "memory", "room"),
    [
        (300, Memory(400 * MIB, 300 * MIB, PLENTY), Room.BESIDE),
        (300, Memory(400 * MIB, 300 * MIB, PLENTY, 700 * MIB), Room.BESIDE),
        (301, Memory(400 * MIB, 300 * MIB, PLENTY, 700 * MIB), Room.INSTEAD),
        (600, Memory(400 * MIB, 300 * MIB, PLENTY, 700 * MIB), Room.INSTEAD),
        (601, Memory(400 * MIB, 300 * MIB, PLENTY, 700 * MIB), Room.NONE),
        (300, Memory(400 * MIB, 300 * MIB, 299 * MIB), Room.INSTEAD),
        (300, Memory(400 * MIB, 300 * MIB, 299 * MIB, PLENTY), Room.INSTEAD),
        (600, Memory(400 * MIB, 300 * MIB, 299 * MIB), Room.NONE),
    ],
)
def test_budget_and_free_memory_both_count(needed: int, memory: Memory, room: Room) -> None:
    verdict = room_for(needed * MIB, memory)
    assert verdict.room is room
    assert bool(verdict.text) is (room is not Room.BESIDE)


def test_the_text_names_the_figures() -> None:
    assert "300 MIB" in room_for(300 * MIB, Memory(0, 0, 200 * MIB)).text.upper()
    text = room_for(300 * MIB, Memory(400 * MIB, 0, PLENTY, 512 * MIB)).text
    assert "memory_budget_bytes leaves 112 of 512 MiB" in text
