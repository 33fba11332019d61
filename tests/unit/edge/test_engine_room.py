"""Where other weights find room: the verdict is the figures'."""

from __future__ import annotations

import pytest

from edge.engine.room import Memory, Room, kv_tokens, prefix_bytes, room_for

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


def test_what_is_promised_to_answers_is_kept_apart() -> None:
    memory = Memory(400 * MIB, 300 * MIB, PLENTY, 750 * MIB)
    assert room_for(300 * MIB, memory, 50 * MIB).room is Room.BESIDE
    verdict = room_for(300 * MIB, memory, 51 * MIB)
    assert verdict.room is Room.INSTEAD
    assert "leaves 350 of 750 MiB, 51 of them promised" in verdict.text
    assert room_for(300 * MIB, Memory(400 * MIB, 300 * MIB, 320 * MIB), 21 * MIB).room is Room.INSTEAD


def test_without_a_budget_each_of_several_promises_its_part_of_what_is_free() -> None:
    assert kv_tokens(None, 8192, 1 << 16, Memory(0, 0, 256 * MIB, None, 2), 0) == 128 * 16
    assert prefix_bytes(None, Memory(0, 0, 1024 * MIB, None, 2)) == 64 * MIB
    assert Memory(0, 0, PLENTY, 300 * MIB, 2).left == 300 * MIB


def test_prefixes_take_a_share_of_what_is_free_and_kv_what_is_left_of_it() -> None:
    assert prefix_bytes(None, Memory(0, 0, PLENTY)) == 256 * MIB
    assert prefix_bytes(None, Memory(400 * MIB, 0, PLENTY, 480 * MIB)) == 10 * MIB
    assert (prefix_bytes(0, Memory(0, 0, PLENTY)), prefix_bytes(1 << 40, Memory(0, 0, 800 * MIB))) == (0, 100 * MIB)
    assert kv_tokens(None, 8192, 46_080, Memory(0, 0, PLENTY), 0) == 8192
    assert kv_tokens(1000, 8192, 46_080, Memory(0, 0, PLENTY), 0) == 1000
    assert kv_tokens(None, 8192, 1 << 16, Memory(100 * MIB, 0, PLENTY, 200 * MIB), 20 * MIB) == 80 * 16
    assert kv_tokens(None, 8192, 1 << 16, Memory(200 * MIB, 0, PLENTY, 200 * MIB), 0) == 512
