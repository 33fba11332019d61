"""Rows are closed up, and prefixes copied, within what a step may take, and everybody still gets his answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

from edge.engine.batcher import Batcher
from edge.engine.job import Event, Job, Served, Ticket, Token
from edge.engine.lane import Lane
from edge.engine.rows import plan
from edge.engine.running import Running
from tests.fakes.steps import FakeSteps, expected
from tests.unit.edge.test_engine_batcher import collect, job, serve
from wire.deadline import Deadline

STEP_S, SLICE = 0.04, 64


class Bench:
    """A lane on a clock of its own."""

    def __init__(self, steps: FakeSteps) -> None:
        self.steps, self.served = steps, serve(steps)
        self.told: dict[Ticket, list[Event]] = {}
        self.lane = Lane(self.served, lambda ticket, event: self.told[ticket].append(event), clock=steps.clock)

    def add(self, prompt: Sequence[int], tokens: int, deadline_s: float = 60.0) -> Running:
        running = Running(Ticket(), Job(self.served, prompt, tokens, Deadline.after(deadline_s)))
        self.told[running.ticket] = []
        self.lane.admit(running)
        return running

    def step(self) -> float:
        began = self.steps.now
        self.lane.step()
        return self.steps.now - began

    def until(self, condition: Callable[[], bool], most: int = 500) -> list[float]:
        took = []
        while not condition():
            took.append(self.step())
            assert len(took) < most, "it never came about"
        return took

    def tokens(self, running: Running) -> list[int]:
        return [event.token for event in self.told[running.ticket] if isinstance(event, Token)]


def dear_passes() -> FakeSteps:
    """Any chunk of a prompt takes six decode steps."""
    return FakeSteps(slots=2, capacity=1024, step_s=0.05, pass_s=0.3, prefill_s=0.001, prefill_chunk=100, virtual=True)


def test_a_prompt_whose_passes_would_stall_a_stream_waits_for_its_end() -> None:
    bench = Bench(dear_passes())
    stream = bench.add([1, 2], 140)
    bench.until(lambda: stream.decoding)
    long = bench.add([3] * 400, 4, deadline_s=3600.0)
    took = bench.until(lambda: stream.ended)
    assert max(took) < 0.06, "the stream noticed nothing"
    bench.until(lambda: long.ended)
    assert bench.tokens(long) == expected([3] * 400, 4)


def test_a_short_prompt_never_gives_way_however_slow_the_box_is() -> None:
    bench = Bench(dear_passes())
    stream = bench.add([1, 2], 140)
    bench.until(lambda: stream.decoding)
    short = bench.add([5] * 40, 4, deadline_s=3600.0)
    took = bench.until(lambda: short.decoding)
    assert len(took) <= 12, "four tokens in every step"
    bench.until(lambda: short.ended)
    assert bench.tokens(short) == expected([5] * 40, 4)


def test_a_short_prompt_passes_a_long_one_that_gives_way() -> None:
    steps = FakeSteps(
        slots=4, capacity=1024, step_s=0.05, pass_s=0.001, pass_growth_s=0.001, prefill_chunk=100, virtual=True
    )
    bench = Bench(steps)
    stream = bench.add([1, 2], 900)
    bench.until(lambda: stream.decoding)
    long = bench.add([3] * 700, 4, deadline_s=3600.0)
    bench.until(lambda: bench.lane.pace.chunk(long.length, 100) == 0)
    bench.until(lambda: long.length > 0)
    before = long.length
    short = bench.add([5] * 20, 4)
    took = bench.until(lambda: short.decoding)
    assert len(took) < 10, "what the long one waits for is no reason to wait"
    assert max(took) < 0.15
    assert long.length - before < 20
    bench.until(lambda: short.ended)
    assert bench.tokens(short) == expected([5] * 20, 4)


def test_a_prompt_that_can_be_read_behind_the_streams_waits_for_those_that_run_now() -> None:
    bench = Bench(dear_passes())
    known = bench.add([4] * 400, 1)
    bench.until(lambda: known.ended)
    stream = bench.add([1, 2], 100)
    bench.until(lambda: stream.decoding)
    long = bench.add([3] * 400, 4, deadline_s=15.0)
    bench.until(lambda: stream.ended)
    assert long.length < 40, "beside the stream it would take longer than its deadline"
    bench.until(lambda: long.ended)
    assert bench.tokens(long) == expected([3] * 400, 4)


def test_a_prompt_that_would_miss_its_deadline_does_not_wait() -> None:
    bench = Bench(dear_passes())
    stream = bench.add([1, 2], 140)
    bench.until(lambda: stream.decoding)
    long = bench.add([3] * 400, 4, deadline_s=5.0)
    bench.until(lambda: stream.ended)
    assert long.length > 350, "the rest takes less than half of the time it has left"
    bench.until(lambda: long.ended)
    assert bench.tokens(long) == expected([3] * 400, 4)


def test_a_long_stream_moves_in_slices_and_goes_on_meanwhile() -> None:
    bench = Bench(FakeSteps(slots=3, capacity=2048, step_s=STEP_S, prefill_chunk=500, copy_s=0.0005, virtual=True))
    short = bench.add([1, 2], 20)
    long = bench.add([3] * 1000, 60)
    bench.until(lambda: len(bench.tokens(long)) > 3)
    short.ticket.cancel()
    bench.lane.drop_departed()
    before = len(bench.tokens(long))
    took = bench.until(lambda: long.row == 0)
    assert len(took) > 5
    assert len(bench.tokens(long)) == before + len(took), "a token in every step"
    # The whole of it would take half a second.
    assert max(took) <= STEP_S * 1.5 + SLICE * bench.steps.copy_s + 1e-9
    assert bench.lane.rows.span == 1
    bench.until(lambda: long.ended)
    assert bench.tokens(long) == expected([3] * 1000, 60)


def test_a_long_prompt_joins_without_a_copy() -> None:
    bench = Bench(FakeSteps(slots=3, capacity=2048, step_s=STEP_S, prefill_chunk=500, copy_s=1.0, virtual=True))
    first = bench.add([1, 2], 1500)
    bench.until(lambda: first.decoding)
    long = bench.add([3] * 800, 4)
    bench.until(lambda: long.ended)
    assert not first.ended
    assert "move" not in bench.steps.log
    assert bench.tokens(long) == expected([3] * 800, 4)


def test_a_prompt_makes_way_where_others_decode_around_it() -> None:
    bench = Bench(FakeSteps(slots=4, capacity=2048, step_s=STEP_S, copy_s=0.0001, virtual=True))
    first = bench.add([1, 2], 900)
    bench.until(lambda: first.decoding)
    long, short = bench.add([3] * 900, 4), bench.add([4, 5], 900)
    bench.until(lambda: short.decoding and bench.lane.rows.span == 2)
    assert (long.decoding, long.row) == (False, 3)
    bench.until(lambda: long.ended, 2000)
    assert bench.tokens(long) == expected([3] * 900, 4)
    assert bench.tokens(short) == expected([4, 5], 900)[: len(bench.tokens(short))]


def test_a_newcomer_gets_the_row_that_one_was_moving_to() -> None:
    bench = Bench(FakeSteps(slots=2, capacity=2048, step_s=STEP_S, prefill_chunk=500, copy_s=0.01, virtual=True))
    short, long = bench.add([1, 2], 4), bench.add([3] * 400, 40)
    bench.until(lambda: short.ended and long.decoding)
    bench.step()
    assert bench.lane.rows._move is not None
    third = bench.add([5] * 7, 5)
    bench.until(lambda: not bench.lane.active)
    assert bench.tokens(long) == expected([3] * 400, 40)
    assert bench.tokens(third) == expected([5] * 7, 5)


def test_kept_prefixes_are_copied_within_the_steps_time_and_none_is_lost() -> None:
    steps = FakeSteps(slots=9, capacity=1024, step_s=STEP_S, prefix_blocks=64, copy_s=0.0005, virtual=True)
    bench = Bench(steps)
    bench.add([1] * 520, 2)
    bench.until(lambda: not bench.lane.active)
    stream = bench.add([7] * 3, 400)
    bench.until(lambda: len(bench.tokens(stream)) > 5)
    prompts = [[1] * 512 + [9] * (i + 2) for i in range(8)]
    asked, before = [bench.add(prompt, 2) for prompt in prompts], len(bench.tokens(stream))
    steps.log.clear()
    took = bench.until(lambda: all(running.ended for running in asked))
    # 256 blocks are copied, of 8 ms each: a fifth of a decode step.
    assert steps.log.count("restore") == 8 * 32
    assert [running.cached for running in asked] == [512] * 8
    assert [bench.tokens(running) for running in asked] == [expected(prompt, 2) for prompt in prompts]
    # Whoever copied may also prefill in that step: a decode step's time in this model, however few tokens it takes.
    assert max(took) <= STEP_S * 1.5 + 0.008 + 2 * STEP_S + 1e-9
    assert len(bench.tokens(stream)) - before == len(took)


def test_copies_never_keep_a_prompt_waiting_for_ever() -> None:
    steps = FakeSteps(slots=4, capacity=2048, step_s=STEP_S, prefill_chunk=400, copy_s=0.01, virtual=True)
    bench = Bench(steps)
    short, long = bench.add([1, 2], 6), bench.add([3] * 1200, 300)
    bench.until(lambda: short.ended and long.decoding)
    waiting = bench.add([4] * 40, 2)
    took = bench.until(lambda: waiting.ended)
    assert "move" in steps.log
    assert len(took) < 60


def test_the_plan_closes_holes_from_the_top_and_makes_prompts_give_way() -> None:
    served = Served(FakeSteps(), str, frozenset(), "m@1", 8, "d")

    def sequence(decoding: bool, prompt: int = 400, length: int = 0) -> Running:
        running = Running(Ticket(), Job(served, [1] * prompt, 4, Deadline.after(5)))
        running.decoding, running.length = decoding, length
        return running

    a, b, prompt, nearly = sequence(True), sequence(True), sequence(False), sequence(False, 400, 390)
    assert plan([None, None]) is None
    assert plan([a, b, None]) is None
    assert plan([a, None, b]) == (b, 1)
    assert plan([None, prompt, None]) is None, "nobody decodes: nothing is gained"
    assert plan([a, prompt, b]) is None, "there is no row for it"
    assert plan([a, prompt, b, None]) == (prompt, 3)
    assert plan([a, nearly, b, None]) is None
    assert plan([None, prompt, b, None]) == (b, 0)


async def test_the_event_loop_never_waits_for_memory_to_be_given_back() -> None:
    free: list[bool] = []

    class Watched(FakeSteps):
        def _seen(self) -> None:
            def look() -> None:
                free.append(batcher._changed.acquire(blocking=False))
                if free[-1]:
                    batcher._changed.release()

            other = threading.Thread(target=look)
            other.start()
            other.join()

        def forget(self, first: int, end: int) -> None:
            self._seen()
            super().forget(first, end)

        def give_back(self, row: int, start: int) -> None:
            self._seen()
            super().give_back(row, start)

    steps = Watched(slots=2, prefix_blocks=64)
    served = serve(steps)
    batcher = Batcher(served, 2, 4, print, kv_tokens=100)
    try:
        for prompt in (80, 10, 60):
            tickets = [batcher.submit(job(served, [prompt] * prompt, 5)), batcher.submit(job(served, [7] * 4, 2))]
            for ticket in tickets:
                await collect(ticket)
        batcher.shed()
        assert len(free) >= 2
        assert all(free)
        assert not steps.kept
    finally:
        batcher.close()


async def test_memory_is_given_back_slice_by_slice_beside_a_stream() -> None:
    steps = FakeSteps(slots=2, capacity=4096, prefix_blocks=256, prefill_chunk=512, step_s=0.001)
    served = serve(steps)
    sizes: list[int] = []
    forget, give_back = steps.forget, steps.give_back

    def forgotten(first: int, end: int) -> None:
        sizes.append((end - first) * 16)
        forget(first, end)

    def given(row: int, start: int) -> None:
        sizes.append(steps.touched[row] - start)
        give_back(row, start)

    steps.forget, steps.give_back = forgotten, given  # type: ignore[method-assign]
    batcher = Batcher(served, 2, 4, print)
    try:
        await collect(batcher.submit(job(served, [1] * 3000, 2)))
        running = batcher.submit(job(served, [2], 2000))
        await running.next()
        await running.next()
        await asyncio.to_thread(batcher.shed)
        running.cancel()
        assert not steps.kept
        assert max(sizes) <= 512
    finally:
        batcher.close()
