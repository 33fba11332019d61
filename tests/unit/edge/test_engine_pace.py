"""How large a chunk of a prompt may be beside decoding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.engine.pace import Line, Pace, cut


def took(tokens: int, position: int, overhead_s: float = 0.005) -> float:
    """A box whose tokens cost 1 ms at the beginning and 2 ms at position 1000, and a chunk 5 ms besides."""
    return overhead_s + tokens * (1e-3 + 1e-6 * (position + tokens / 2))


def learned(step_s: float = 0.03) -> Pace:
    pace = Pace(factor=2.3)
    for _ in range(30):
        pace.decoded(step_s)
    return pace


def test_a_mixed_step_stays_within_twice_a_decode_step_over_a_long_prompt() -> None:
    pace, position = learned(), 0
    for start in range(0, 512, 128):
        pace.prefilled(128, start, took(128, start), beside=False)
    mixed = []
    while position < 4000:
        chunk = cut(4000 - position, pace.chunk(position, 128))
        seconds = took(chunk, position)
        pace.prefilled(chunk, position, seconds, beside=True)
        mixed.append(0.03 + seconds)
        position += chunk
    assert max(mixed[3:]) < 2.5 * 0.03
    assert sorted(mixed)[len(mixed) // 2] > 1.5 * 0.03, "the time there is should be used"


def test_before_anything_is_known_a_prompt_gets_the_floor() -> None:
    assert Pace(floor=8).chunk(0, 128) == 8
    assert learned().chunk(0, 128) == 4
    assert learned().chunk(0, 2) == 2


def fed(pace: Pace, pass_s: float = 0.0) -> Pace:
    """One that knows tokens of 1 ms and passes of `pass_s`, wherever they stand."""
    for _ in range(3):
        pace.prefilled(128, 0, 0.128, beside=False)
        pace.prefilled(16, 0, 0.016 + pass_s, beside=True)
    return pace


def test_later_prompts_of_a_step_get_what_the_first_left() -> None:
    pace = fed(learned())
    assert 37 <= pace.chunk(0, 128) <= 39
    assert 22 <= pace.chunk(0, 128, spent_s=0.015) <= 24
    assert pace.chunk(0, 128, spent_s=0.038) == 0


def test_what_a_pass_costs_however_few_tokens_it_takes_is_no_fault_of_the_tokens() -> None:
    pace = fed(learned(), pass_s=0.02)
    assert 17 <= pace.chunk(0, 128) <= 19
    for _ in range(30):
        pace.prefilled(4, 0, 0.024, beside=True)
    assert 17 <= pace.chunk(0, 128) <= 19, "small chunks are dear by their passes, and larger ones hardly more"


def test_a_first_prompt_of_few_tokens_does_not_make_tokens_dear_for_good() -> None:
    pace = learned()
    pace.prefilled(3, 0, 0.012, beside=False)  # a pass of 9 ms and tokens of 1 ms: 4 ms each, as far as anybody knows
    assert pace.chunk(0, 128) < 10
    for _ in range(40):
        chunk = pace.chunk(0, 128)
        pace.prefilled(chunk, 0, 0.009 + chunk * 1e-3, beside=True)
    assert pace.chunk(0, 128) > 20


def test_passes_cost_more_further_on() -> None:
    pace = learned()
    for position in range(0, 4000, 128):
        pace.prefilled(128, position, 0.128, beside=False)
    for position in range(0, 3000, 100):
        pace.prefilled(4, position, 0.004 + 1e-5 * position, beside=True)
    assert pace.chunk(0, 128) > 30
    assert 15 <= pace.chunk(2000, 128) <= 21
    assert pace.chunk(3900, 128) == 4


def test_a_pass_that_something_else_made_long_is_not_believed() -> None:
    pace = fed(learned(), pass_s=0.01)
    before = pace.chunk(0, 128)
    pace.prefilled(4, 0, 0.014 + 3.0, beside=True)
    assert before - 10 < pace.chunk(0, 128) < before
    for _ in range(5):
        pace.prefilled(4, 0, 0.014 + 3.0, beside=True)
    assert pace.chunk(0, 128) <= 4, "but where it goes on it is"


def test_where_any_pass_takes_too_long_a_prompt_waits_for_the_streams_to_end() -> None:
    pace = fed(learned(step_s=0.05), pass_s=0.5)
    taken = [pace.chunk(3000, 128) for _ in range(2000)]
    assert sorted(set(taken)) == [0, 2]
    assert sum(map(bool, taken)) == 2, "now and then it tries"
    assert pace.chunk(3000, 128, spent_s=0.5) == 0


def test_what_small_chunks_take_is_told() -> None:
    pace = fed(learned(step_s=0.05), pass_s=0.5)
    assert pace.creep_s(400, 3000) == pytest.approx(100 * (0.05 + 0.5 + 4 * 0.001), rel=0.05)
    assert Pace().creep_s(400, 3000) == 0.0


def test_a_single_fast_stream_may_be_slowed_as_long_as_nobody_notices() -> None:
    pace = fed(learned(step_s=0.01), pass_s=0.03)
    assert pace.chunk(0, 128) == 4, "44 ms in place of 10, at more than twenty words a second"
    slow = fed(learned(step_s=0.01), pass_s=0.2)
    assert slow.chunk(0, 128) == 0


def test_what_streams_grow_by_is_taken_from_the_prompts_share() -> None:
    pace = fed(learned())
    before = pace.chunk(0, 128)
    for _ in range(40):
        pace.decoded(0.036, beside=True)
    assert pace.chunk(0, 128) == pytest.approx(before - 6, abs=1)
    for _ in range(40):
        pace.decoded(0.06, beside=True)
    assert pace.chunk(0, 128) == pytest.approx(9, abs=1)
    pace.joined()
    assert pace.chunk(0, 128) == pytest.approx(78, abs=1)
    for _ in range(40):
        pace.decoded(0.03, beside=True)
    assert pace.chunk(0, 128) == pytest.approx(before, abs=1)


def test_what_waits_is_told_from_what_was_learned() -> None:
    pace = learned(step_s=0.01)
    assert (pace.prompt_s(100), Pace().answer_s(100)) == (0.0, 0.0)
    pace.prefilled(100, 0, 0.1, beside=False)
    assert pace.prompt_s(100) == pytest.approx(0.1)
    assert pace.answer_s(100) == pytest.approx(0.5)
    for _ in range(100):
        pace.answered(10, 100)
    assert pace.answer_s(100) == pytest.approx(0.1, rel=0.01)


@given(st.lists(st.tuples(st.integers(0, 4000), st.floats(1e-6, 1.0)), min_size=1), st.integers(0, 8000))
def test_a_line_is_never_below_a_tenth_of_its_mean_nor_falls(points: list[tuple[int, float]], x: int) -> None:
    line = Line()
    for position, seconds in points:
        line.add(position, seconds)
    assert line.at(x) > 0
    assert line.at(x + 100) >= line.at(x) * (1 - 1e-9)


@given(st.integers(1, 300), st.integers(3, 128))
def test_no_token_of_a_prompt_is_ever_taken_alone(prompt: int, wanted: int) -> None:
    left = prompt
    while left:
        taken = cut(left, wanted)
        assert 0 < taken <= wanted
        assert taken > 1 or prompt == 1
        left -= taken
