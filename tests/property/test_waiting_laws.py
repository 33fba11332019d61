"""Laws of the queue: who goes first, who is passed how often, what a budget holds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge.engine.waiting import AGEING_S, MOST_LEVELS, MOST_PASSED, Turn, WaitingList, level, rank, wait_s

_priorities = st.integers(-(2**31), 2**31 - 1)
_values = st.none() | st.floats(0, 1e12)


@given(_priorities, _values, _priorities, _values, st.floats(0, 1e6))
def test_nobody_starves(mine: int, worth: float | None, other: int, others: float | None, came: float) -> None:
    """Whoever has waited for the whole span of levels goes before every newcomer."""
    later = came + 2 * MOST_LEVELS * AGEING_S + 1e-3
    assert rank(mine, worth, came) < rank(other, others, later)


@given(_priorities, _values, st.floats(0, 1e6))
def test_a_higher_priority_or_value_never_goes_later(priority: int, value: float | None, came: float) -> None:
    assert rank(priority + 1, value, came) <= rank(priority, value, came)
    assert rank(priority, (value or 1.0) * 2, came) <= rank(priority, value or 1.0, came)
    assert level(priority, 1.0) == level(priority, None)


_items = st.lists(st.tuples(st.integers(1, 100), st.floats(0, 100)), max_size=40)


@given(_items, st.lists(st.integers(0, 100), max_size=80))
def test_the_best_that_fits_goes_and_others_are_passed_at_most_so_often(
    items: list[tuple[int, float]], free: list[int]
) -> None:
    waiting: WaitingList[int] = WaitingList()
    for number, (claim, order) in enumerate(items):
        waiting.add(number, claim, order)
    passed = dict.fromkeys(range(len(items)), 0)
    for room in free:
        before = list(waiting)
        assert before == sorted(before, key=lambda n: (items[n][1], n))
        taken = waiting.take(room)
        if taken is None:
            blocked = [n for n in before if passed[n] >= MOST_PASSED]
            upto = before[: before.index(blocked[0])] if blocked else before
            assert all(items[n][0] > room for n in upto)
            continue
        assert items[taken][0] <= room
        for n in before[: before.index(taken)]:
            assert items[n][0] > room
            passed[n] += 1
            assert passed[n] <= MOST_PASSED
        assert list(waiting) == [n for n in before if n != taken]


_turns = st.builds(Turn, st.floats(0, 100), st.integers(1, 100))


@given(st.lists(_turns, max_size=8), st.lists(_turns, max_size=20), st.integers(1, 8), st.integers(1, 100))
def test_more_ahead_never_shortens_a_wait_and_a_free_slot_ends_it(
    running: list[Turn], ahead: list[Turn], slots: int, claim: int
) -> None:
    running = running[:slots]
    wait = wait_s(running, ahead, slots)
    assert wait <= wait_s(running, [*ahead, Turn(5.0)], slots)
    assert wait <= sum(turn.seconds for turn in (*running, *ahead)) + 1e-6
    if len(running) + len(ahead) < slots:
        assert wait == 0
    # A budget never lets anybody go sooner, and one that all fit in together keeps nobody.
    together = sum(turn.claim for turn in (*running, *ahead)) + claim
    assert wait_s(running, ahead, slots, together, claim) == wait
    assert wait_s(running, ahead, slots, 100, claim) >= wait


def test_a_newcomer_waits_for_the_budget_as_for_a_slot() -> None:
    running = [Turn(3.0, 60), Turn(9.0, 30)]
    assert wait_s(running, [], 8, 100, 10) == 0
    assert wait_s(running, [], 8, 100, 11) == 3
    assert wait_s(running, [], 8, 100, 71) == 9
    assert wait_s(running, [Turn(4.0, 50)], 8, 100, 30) == 7
