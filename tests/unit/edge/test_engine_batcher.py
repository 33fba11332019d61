"""Iteration-level batching: rows, bounds, deadlines, callers that leave, faults that stay alone."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from edge.engine.batcher import Batcher
from edge.engine.job import Ended, Job, Served, Ticket, Token
from runtime.ort.sampling import SamplingParams
from tests.fakes.steps import FakeSteps, expected
from wire.deadline import Deadline
from wire.errors import DeadlineExceeded, Overloaded, Unavailable, WeirError

END = 0


def decode(ids: Sequence[int]) -> str:
    return "".join(f"<{token}>" for token in ids)


def serve(steps: FakeSteps, release: str = "m@1", precision: int = 8) -> Served:
    return Served(steps, decode, frozenset({END}), release, precision, f"digest-{precision}")


def job(
    served: Served, prompt: Sequence[int] = (5, 6, 7), tokens: int = 8, within_s: float = 20.0, **more: object
) -> Job:
    return Job(served, prompt, tokens, Deadline.after(within_s), **more)  # type: ignore[arg-type]


@dataclass
class Bench:
    batcher: Batcher
    served: Served
    broken: list[str] = field(default_factory=list)


@asynccontextmanager
async def bench(steps: FakeSteps, slots: int = 4, max_queue: int = 16) -> AsyncIterator[Bench]:
    broken: list[str] = []
    served = serve(steps)
    batcher = Batcher(served, slots, max_queue, broken.append)
    try:
        yield Bench(batcher, served, broken)
    finally:
        batcher.close()


async def collect(ticket: Ticket) -> tuple[list[int], Ended]:
    tokens = []
    while isinstance(event := await asyncio.wait_for(ticket.next(), 10), Token):
        tokens.append(event.token)
    return tokens, event


async def until(condition: object, within_s: float = 5.0) -> None:
    end = time.monotonic() + within_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "it never came about"
        await asyncio.sleep(0.001)


async def test_many_ragged_requests_get_what_each_alone_would_get() -> None:
    steps = FakeSteps(slots=4)
    async with bench(steps) as b:
        jobs = [job(b.served, [i + 1] * (1 + 3 * i % 17), 3 + 5 * i % 11) for i in range(16)]
        answers = await asyncio.gather(*(collect(b.batcher.submit(j)) for j in jobs))
    for j, (tokens, ended) in zip(jobs, answers, strict=True):
        assert tokens == expected(j.prompt_ids, j.max_tokens)
        assert ended.finish_reason == "length"
        assert ended.signals.tokens == j.max_tokens
        assert ended.signals.prompt_tokens == len(j.prompt_ids)
    assert max(steps.decode_batches) == 4


async def test_a_long_prompt_takes_turns_with_running_answers() -> None:
    steps = FakeSteps(slots=2)
    async with bench(steps, slots=2) as b:
        running = b.batcher.submit(job(b.served, [1, 2], 60))
        await running.next()
        start = len(steps.log)
        await collect(b.batcher.submit(job(b.served, [3] * 40, 1)))
        running.cancel()
    log = steps.log[start:]
    first, last = log.index("prefill"), len(log) - 1 - log[::-1].index("prefill")
    assert max(steps.prefill_chunks) == 4
    assert "prefill prefill" not in " ".join(log[first:last])


async def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    async with bench(FakeSteps(slots=2, step_s=0.002), slots=2) as b:
        long = asyncio.create_task(collect(b.batcher.submit(job(b.served, [3] * 200, 2))))
        await collect(b.batcher.submit(job(b.served, [4], 2)))
        assert not long.done()
        await long


async def test_an_end_token_and_a_stop_sequence_end_an_answer() -> None:
    prompt = [5, 6, 7]
    answer = expected(prompt, 10)
    steps = FakeSteps()
    async with bench(steps) as b:
        ended = Served(steps, decode, frozenset({answer[3]}), "m@1", 8, "d")
        b.batcher.switch(ended)
        tokens, end = await collect(b.batcher.submit(job(ended, prompt, 10)))
        assert (tokens, end.finish_reason) == (answer[:3], "stop")
        b.batcher.switch(b.served)
        stop = f"{answer[1]}><{answer[2]}"
        ticket, text = b.batcher.submit(job(b.served, prompt, 10, stops=(stop,))), ""
        while isinstance(event := await ticket.next(), Token):
            text += event.text
        assert (text + event.text, event.finish_reason) == (f"<{answer[0]}><", "stop")


async def test_a_full_queue_refuses_at_once_and_the_rest_is_answered() -> None:
    async with bench(FakeSteps(slots=1, step_s=0.001), slots=1, max_queue=2) as b:
        tickets = [b.batcher.submit(job(b.served)) for _ in range(3)]
        with pytest.raises(Overloaded, match="at most 2"):
            b.batcher.submit(job(b.served))
        assert all(len(tokens) == 8 for tokens, _ in await asyncio.gather(*map(collect, tickets)))
        await until(lambda: b.batcher.active == 0)
        await collect(b.batcher.submit(job(b.served)))


async def test_without_a_queue_a_free_slot_is_still_taken() -> None:
    async with bench(FakeSteps(slots=1), slots=1, max_queue=0) as b:
        await collect(b.batcher.submit(job(b.served)))


async def test_a_caller_that_leaves_frees_its_slot_within_one_step() -> None:
    async with bench(FakeSteps(slots=1, step_s=0.05), slots=1) as b:
        leaving = b.batcher.submit(job(b.served, tokens=200))
        await leaving.next()
        steps = b.batcher.decode_steps
        leaving.cancel()
        await until(lambda: b.batcher.active == 0)
        assert b.batcher.decode_steps <= steps + 1


async def test_a_waiting_caller_that_leaves_frees_its_place() -> None:
    async with bench(FakeSteps(slots=1, step_s=0.01), slots=1, max_queue=1) as b:
        running = b.batcher.submit(job(b.served, tokens=100))
        await running.next()
        b.batcher.submit(job(b.served)).cancel()
        await until(lambda: b.batcher.queued == 0)
        b.batcher.submit(job(b.served))
        running.cancel()


async def test_a_deadline_ends_what_decodes_and_what_waits() -> None:
    async with bench(FakeSteps(slots=1, step_s=0.01), slots=1) as b:
        running = b.batcher.submit(job(b.served, tokens=200, within_s=0.15))
        waiting = b.batcher.submit(job(b.served, within_s=0.05))
        with pytest.raises(DeadlineExceeded, match="in the queue"):
            await collect(waiting)
        with pytest.raises(DeadlineExceeded, match="of at most 200 tokens"):
            await collect(running)
        await collect(b.batcher.submit(job(b.served)))


async def test_a_fault_of_one_request_stays_its_own() -> None:
    steps = FakeSteps(poison=13)

    def fragile(ids: Sequence[int]) -> str:
        raise LookupError("no such token")

    async with bench(steps) as b:
        good = [b.batcher.submit(job(b.served, [i], 20)) for i in (1, 2)]
        poisoned = b.batcher.submit(job(b.served, [13, 4]))
        odd = b.batcher.submit(job(Served(steps, fragile, frozenset(), "m@1", 8, "d"), [3]))
        with pytest.raises(Unavailable, match="failed on this request"):
            await collect(poisoned)
        with pytest.raises(WeirError, match="internal fault"):
            await collect(odd)
        answers = await asyncio.gather(*map(collect, good))
        assert [tokens for tokens, _ in answers] == [expected([i], 20) for i in (1, 2)]
        assert not b.broken


async def test_a_broken_model_fails_everybody_says_so_and_takes_no_more() -> None:
    async with bench(FakeSteps(slots=1, break_at=3), slots=1) as b:
        tickets = [b.batcher.submit(job(b.served)) for _ in range(3)]
        for ticket in tickets:
            with pytest.raises(Unavailable, match="being restarted"):
                await collect(ticket)
        await until(lambda: b.broken)
        assert "broken on order" in b.broken[0]
        assert b.batcher.closed
        with pytest.raises(Unavailable):
            b.batcher.submit(job(b.served))


@pytest.mark.parametrize(("at", "scored"), [(1, False), (5, False), (3, True), (7, True)])
async def test_a_model_that_breaks_in_a_prompt_or_a_score_tells_everybody(at: int, scored: bool) -> None:
    more = {"continuations": ((4, 5, 6, 7), (5, 6, 7, 8))} if scored else {}
    async with bench(FakeSteps(slots=2, break_at_prefill=at), slots=2) as b:
        tickets = [b.batcher.submit(job(b.served, [i] * 12, 4, **more)) for i in range(1, 4)]
        for ticket in tickets:
            with pytest.raises(Unavailable, match="being restarted"):
                await collect(ticket)
        await until(lambda: b.broken)


async def test_what_one_request_does_to_a_prefill_stays_its_own() -> None:
    async with bench(FakeSteps(trip=13, slots=2), slots=2) as b:
        good = b.batcher.submit(job(b.served, [1], 20))
        for _ in range(3):  # its row is free again
            with pytest.raises(WeirError, match="internal fault"):
                await collect(b.batcher.submit(job(b.served, [2, 2, 2, 2, 13])))
        assert (await collect(good))[0] == expected([1], 20)
        assert not b.broken


async def test_a_request_that_cannot_begin_ends_alone() -> None:
    async with bench(FakeSteps(slots=2), slots=2) as b:
        good = b.batcher.submit(job(b.served, [1], 20))
        odd = b.batcher.submit(job(b.served, sampling=SamplingParams(temperature=1.0, seed=-1)))
        with pytest.raises(WeirError, match="internal fault"):
            await collect(odd)
        assert (await collect(good))[0] == expected([1], 20)
        assert not b.broken


async def test_a_request_whose_lane_cannot_be_made_is_told() -> None:
    class Barren(FakeSteps):
        @property
        def prefix_blocks(self) -> int:
            raise MemoryError("no lane on order")

        @prefix_blocks.setter
        def prefix_blocks(self, blocks: int) -> None: ...

    async with bench(FakeSteps()) as b:
        barren = serve(Barren(), release="barren@1")
        with pytest.raises(WeirError, match="internal fault"):
            await collect(b.batcher.submit(job(barren)))
        assert len((await collect(b.batcher.submit(job(b.served))))[0]) == 8
        assert not b.broken


async def test_closing_fails_what_runs_and_what_waits() -> None:
    async with bench(FakeSteps(slots=1, step_s=0.01), slots=1) as b:
        tickets = [b.batcher.submit(job(b.served, tokens=200)) for _ in range(2)]
        await tickets[0].next()
        b.batcher.close()
        for ticket in tickets:
            with pytest.raises(Unavailable, match="stopping"):
                await collect(ticket)


async def test_running_answers_finish_on_the_model_they_began_on() -> None:
    old, new = FakeSteps(slots=2, step_s=0.002), FakeSteps(slots=2)
    async with bench(old, slots=2) as b:
        running = b.batcher.submit(job(b.served, tokens=40))
        await running.next()
        fresh = serve(new, precision=4)
        b.batcher.switch(fresh)
        _, ended = await collect(b.batcher.submit(job(fresh)))
        assert (ended.served.precision, ended.served.weight_digest) == (4, "digest-4")
        tokens, ended = await collect(running)
        assert ended.served.precision == 8
        assert len(tokens) == 39


async def test_a_request_that_waited_takes_the_precision_now_in_force() -> None:
    old, new = FakeSteps(slots=1, step_s=0.005), FakeSteps(slots=1)
    async with bench(old, slots=1) as b:
        running = b.batcher.submit(job(b.served, tokens=20))
        await running.next()
        waiting = b.batcher.submit(job(b.served))
        other = b.batcher.submit(job(serve(FakeSteps(slots=1), release="other@1")))
        b.batcher.switch(serve(new, precision=4))
        await collect(running)
        assert (await collect(waiting))[1].served.precision == 4
        assert (await collect(other))[1].served.release == "other@1"


async def test_a_model_no_longer_in_force_is_let_go() -> None:
    served = serve(FakeSteps(slots=1))
    gone = weakref.ref(served.steps)
    batcher = Batcher(served, 1, 0, print)
    try:
        await collect(batcher.submit(job(served)))
        served = serve(FakeSteps(slots=1), precision=4)
        batcher.switch(served)
        await until(lambda: gc.collect() >= 0 and gone() is None)
    finally:
        batcher.close()
