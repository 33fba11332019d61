"""Who gets a row, and when: the KV budget, order, deadlines, kept prefixes, memory that goes back."""

from __future__ import annotations

import asyncio

import pytest

from edge.engine.batcher import Batcher
from edge.engine.job import Ended, Job
from tests.fakes.steps import FakeSteps, expected
from tests.unit.edge.test_engine_batcher import collect, job, serve, until
from wire.deadline import Deadline
from wire.errors import ContextTooLong, Overloaded, Unavailable


def batcher(steps: FakeSteps, slots: int | None = None, **more: object) -> tuple[Batcher, object]:
    served = serve(steps)
    return Batcher(served, slots or steps.slots, 64, print, **more), served  # type: ignore[arg-type]


async def test_what_never_fits_is_refused_at_once_and_the_rest_waits_for_room() -> None:
    steps = FakeSteps(slots=4, step_s=0.001)
    b, served = batcher(steps, kv_tokens=40)
    try:
        with pytest.raises(ContextTooLong, match=r"41 tokens together.*holds 40"):
            b.submit(job(served, [1] * 21, 20))
        seen, tickets = [], [b.submit(job(served, [i + 1] * 5, 10)) for i in range(8)]
        answers = asyncio.gather(*map(collect, tickets))
        while not answers.done():
            seen.append(b.kv_tokens_used)
            await asyncio.sleep(0.001)
        assert [tokens for tokens, _ in await answers] == [expected([i + 1] * 5, 10) for i in range(8)]
        assert 0 < max(seen) <= 40
        assert max(steps.decode_batches) == 2
        await until(lambda: b.kv_tokens_used == 0)
    finally:
        b.close()


async def test_memory_of_rows_stays_within_the_budget() -> None:
    steps = FakeSteps(slots=3)
    b, served = batcher(steps, kv_tokens=100)
    try:
        for prompt in (80, 10, 60, 90, 5):  # wherever they land, long rows are given back for others
            tickets = [b.submit(job(served, [prompt] * prompt, 5)), b.submit(job(served, [7] * 4, 2))]
            for ticket, claimed in zip(tickets, (prompt, 4), strict=True):
                assert (await collect(ticket))[1].signals.prompt_tokens == claimed
            assert sum(steps.touched) <= 100
    finally:
        b.close()


async def test_what_matters_more_goes_first_and_nobody_for_ever() -> None:
    steps = FakeSteps(slots=1, step_s=0.002)
    b, served = batcher(steps)
    try:
        running = b.submit(job(served, tokens=30))
        await running.next()
        order: list[str] = []

        async def ask(name: str, **more: object) -> None:
            await collect(b.submit(job(served, tokens=2, **more)))
            order.append(name)

        await asyncio.gather(
            ask("usual"), ask("low", priority=-1), ask("high", priority=2), ask("dear", value=2.0), collect(running)
        )
        assert order == ["high", "dear", "usual", "low"]
    finally:
        b.close()


async def test_who_cannot_expect_a_turn_in_time_is_told_at_once() -> None:
    steps = FakeSteps(slots=1, step_s=0.01)
    b, served = batcher(steps)
    try:
        running = b.submit(job(served, tokens=200))
        for _ in range(5):
            await running.next()
        with pytest.raises(Overloaded, match="expected to be free in about"):
            b.submit(job(served, tokens=2, within_s=0.2))
        patient = b.submit(job(served, tokens=2, within_s=10))
        running.cancel()
        await collect(patient)
    finally:
        b.close()


async def test_who_waits_for_memory_is_forecast_like_who_waits_for_a_slot() -> None:
    steps = FakeSteps(slots=4, step_s=0.01)
    b, served = batcher(steps, kv_tokens=210)
    try:
        running = b.submit(job(served, tokens=200))
        for _ in range(5):
            await running.next()
        with pytest.raises(Overloaded, match="expected to be free in about"):
            b.submit(job(served, [1] * 20, tokens=2, within_s=0.2))
        await collect(b.submit(job(served, tokens=2, within_s=0.2)))
        running.cancel()
    finally:
        b.close()


async def test_scores_are_forecast_by_their_passes() -> None:
    steps = FakeSteps(slots=1, step_s=0.01)
    b, served = batcher(steps)
    try:
        await collect(b.submit(job(served, tokens=10)))
        await until(lambda: b.active == 0)
        options = tuple((1, 2, 3 + i) for i in range(40))
        scored = b.submit(Job(served, [1, 2], 3, Deadline.after(20), continuations=options))
        await until(lambda: b.active == 1)
        with pytest.raises(Overloaded, match="expected to be free in about"):
            b.submit(job(served, tokens=1, within_s=0.1))
        await scored.next()
    finally:
        b.close()


async def test_everybody_is_told_by_an_error_of_his_own() -> None:
    steps = FakeSteps(slots=2, step_s=0.01)
    b, served = batcher(steps)
    tickets = [b.submit(job(served, tokens=100)) for _ in range(4)]
    await tickets[0].next()
    b.close()
    told = []
    for ticket in tickets:
        with pytest.raises(Unavailable) as caught:
            await collect(ticket)
        told.append(caught.value)
    for _ in range(2):
        with pytest.raises(Unavailable) as caught:
            b.submit(job(served))
        told.append(caught.value)
    assert len(set(map(id, told))) == 6
    assert len(set(map(str, told))) == 1


async def test_a_prompt_that_was_here_is_copied_and_its_answer_is_the_same() -> None:
    steps = FakeSteps(slots=2, prefix_blocks=16)
    b, served = batcher(steps)
    try:
        prompt = [1] * 70
        cold = await collect(b.submit(job(served, prompt, 6, tenant="a")))
        before = sum(steps.prefill_chunks)
        warm = await collect(b.submit(job(served, prompt, 6, tenant="a")))
        assert warm[0] == cold[0] == expected(prompt, 6)
        assert (cold[1].cached_tokens, warm[1].cached_tokens) == (0, 64)
        assert sum(steps.prefill_chunks) - before == 6
        other = await collect(b.submit(job(served, prompt, 6, tenant="b")))
        assert (other[0], other[1].cached_tokens) == (cold[0], 0)
        assert (b.figures.prefix_hit_tokens, b.figures.prefix_tokens) == (64, 2 * 64)
    finally:
        b.close()


async def test_a_conversation_goes_on_from_its_answer() -> None:
    steps = FakeSteps(slots=1, prefix_blocks=16)
    for keeps, cached in ((True, 48), (False, 16)):
        b, served = batcher(steps, keep_answers=keeps)
        try:
            first, _ = await collect(b.submit(job(served, [1] * 20, 30)))
            turn = [1] * 20 + first + [2] * 5
            tokens, ended = await collect(b.submit(job(served, turn, 4)))
            assert (tokens, ended.cached_tokens) == (expected(turn, 4), cached)
        finally:
            b.close()


async def test_requests_that_begin_alike_share_their_prefill_while_it_happens() -> None:
    steps = FakeSteps(slots=4, prefix_blocks=16, prefill_chunk=16)
    b, served = batcher(steps)
    try:
        prompt = [3] * 80
        answers = await asyncio.gather(*(collect(b.submit(job(served, [*prompt, i], 3))) for i in range(1, 5)))
        assert [tokens for tokens, _ in answers] == [expected([*prompt, i], 3) for i in range(1, 5)]
        assert sum(steps.prefill_chunks) < 2 * 81
    finally:
        b.close()


async def test_kept_prefixes_go_with_their_weights_and_when_memory_is_wanted() -> None:
    old, new = FakeSteps(slots=2, prefix_blocks=16, step_s=0.002), FakeSteps(slots=2, prefix_blocks=16)
    b, served = batcher(old)
    try:
        await collect(b.submit(job(served, [1] * 40, 2)))
        assert old.kept
        await asyncio.to_thread(b.shed)
        assert not old.kept
        assert max(old.touched) == 0
        running = b.submit(job(served, [1] * 40, 40))
        await running.next()
        assert old.kept
        fresh = serve(new, precision=4)
        b.switch(fresh)
        _, ended = await collect(b.submit(job(fresh, [1] * 40, 2)))
        assert ended.cached_tokens == 0
        assert not old.kept
        tokens = 1
        while not isinstance(await running.next(), Ended):
            tokens += 1
        assert tokens == 40
        assert not old.kept
    finally:
        b.close()
