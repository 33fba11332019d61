"""What requests may claim together when another model, which takes other memory for a token, comes into force."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from edge.engine.batcher import Batcher
from edge.engine.job import Served
from tests.fakes.steps import FakeSteps
from tests.unit.edge.test_engine_batcher import collect, job, serve, until
from wire.errors import ContextTooLong, Overloaded


def large(steps: FakeSteps) -> Served:
    """Four times what others take for a token."""
    return dataclasses.replace(serve(steps, "m@2"), kv_bytes_per_token=4)


async def test_claims_on_two_models_at_once_stay_within_one_budget() -> None:
    old, new = FakeSteps(step_s=0.002), FakeSteps()
    served, fresh = serve(old), large(new)
    b = Batcher(served, 4, 16, print, kv_tokens=300)
    try:
        running = b.submit(job(served, tokens=197))  # 200 bytes
        await running.next()
        b.switch(fresh, 70)  # 280 bytes
        assert (b.kv_tokens, b.tokens_for(served)) == (70, 280)
        seen, answers = [], asyncio.gather(*(collect(b.submit(job(fresh, tokens=7))) for _ in range(6)))  # of 40
        while not answers.done():
            seen.append(b.kv_tokens_used)
            await asyncio.sleep(0.001)
        await answers
        assert 50 <= max(seen) <= 70
        assert max(new.decode_batches) <= 2
        running.cancel()
        await until(lambda: b.kv_tokens_used == 0)
    finally:
        b.close()


async def test_a_model_that_takes_less_is_not_held_to_the_budget_of_the_one_before() -> None:
    fresh = serve(FakeSteps())
    b = Batcher(large(FakeSteps()), 4, 16, print, kv_tokens=25)
    try:
        b.switch(fresh, 100)
        await collect(b.submit(job(fresh, [1] * 60, 10)))
    finally:
        b.close()


async def test_who_waits_and_can_never_fit_any_more_is_told_at_once() -> None:
    served, fresh = serve(FakeSteps(slots=1, step_s=0.002)), large(FakeSteps(slots=1))
    b = Batcher(served, 1, 16, print)
    try:
        running = b.submit(job(served, tokens=200))
        await running.next()
        never, later, fits = (b.submit(job(served, [1] * prompt, 5)) for prompt in (76, 75, 35))
        b.switch(fresh, 10, 20)
        with pytest.raises(ContextTooLong, match=r"81 tokens together.*holds 40 \(kv_tokens\)"):
            await never.next()
        with pytest.raises(Overloaded, match="until the weights that were replaced have gone"):
            await later.next()
        with pytest.raises(Overloaded):
            b.submit(job(fresh, [1] * 6, 5))
        assert (b.active, b.queued) == (1, 1), "those that are told wait no more; the others do"
        b.allow(20)
        ticket = b.submit(job(fresh, [1] * 6, 5))
        with pytest.raises(ContextTooLong, match=r"21 tokens together.*holds 20"):
            b.submit(job(fresh, [1] * 16, 5))
        running.cancel()
        await collect(fits)
        await collect(ticket)
    finally:
        b.close()
