"""The gate before the weights: who is inside finishes, who comes waits, and nobody waits in vain."""

from __future__ import annotations

import asyncio
import time

import pytest

from edge.engine.gate import Gate
from wire.deadline import Deadline
from wire.errors import DeadlineExceeded, Overloaded


async def stay(gate: Gate, seconds: float, within_s: float = 5.0) -> float:
    async with gate.passed(Deadline.after(within_s)) as waited:
        await asyncio.sleep(seconds)
    return waited


async def test_an_open_gate_holds_nobody() -> None:
    gate = Gate()
    assert await stay(gate, 0) == 0
    assert (gate.inside, gate.waiting, gate.closed) == (0, 0, False)


async def test_who_is_inside_finishes_and_who_comes_waits_for_it_to_open() -> None:
    gate = Gate()
    running = asyncio.create_task(stay(gate, 0.05))
    await asyncio.sleep(0)
    gate.close(lambda: 0.0)
    coming = [asyncio.create_task(stay(gate, 0)) for _ in range(3)]
    await asyncio.sleep(0.01)
    assert (gate.inside, gate.waiting) == (1, 3)
    assert await gate.emptied(2)
    assert running.done() and not any(task.done() for task in coming)
    gate.open()
    assert all(waited > 0.03 for waited in await asyncio.gather(*coming))
    assert (gate.inside, gate.waiting) == (0, 0)


async def test_somebody_who_stays_is_told_of_in_time() -> None:
    gate = Gate()
    staying = asyncio.create_task(stay(gate, 5))
    await asyncio.sleep(0)
    gate.close(lambda: 0.0)
    began = time.monotonic()
    assert not await gate.emptied(0.05)
    assert not await gate.emptied(-1)
    assert time.monotonic() - began < 1
    staying.cancel()
    await asyncio.gather(staying, return_exceptions=True)
    assert await gate.emptied(1)


async def test_a_request_that_cannot_outlast_the_change_is_refused_at_once() -> None:
    gate = Gate()
    gate.close(lambda: 2.0)
    began = time.monotonic()
    with pytest.raises(Overloaded, match=r"for about 2.0 s more, and this request has 1.\d s"):
        await stay(gate, 0, within_s=1.5)
    assert time.monotonic() - began < 0.2
    assert gate.waiting == 0


async def test_a_change_that_takes_longer_than_expected_ends_a_wait_with_its_deadline() -> None:
    gate = Gate()
    gate.close(lambda: 0.01)
    with pytest.raises(DeadlineExceeded, match="weights were being changed"):
        await stay(gate, 0, within_s=0.1)
    assert gate.waiting == 0


async def test_a_gate_that_closes_again_before_a_waiter_woke_holds_it_on() -> None:
    gate = Gate()
    gate.close(lambda: 0.0)
    waiting = asyncio.create_task(stay(gate, 0))
    await asyncio.sleep(0.01)
    gate.open()
    gate.close(lambda: 0.0)
    await asyncio.sleep(0.02)
    assert (gate.waiting, gate.inside) == (1, 0)
    gate.open()
    assert await waiting > 0.02


async def test_a_caller_that_leaves_while_it_waits_is_forgotten() -> None:
    gate = Gate()
    gate.close(lambda: 0.0)
    waiting = asyncio.create_task(stay(gate, 0))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (gate.waiting, gate.inside) == (0, 0)
