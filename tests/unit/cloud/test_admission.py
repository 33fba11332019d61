"""Places are bounded, waiting is bounded, and whoever leaves gives the place up."""

from __future__ import annotations

import asyncio

import pytest

from cloud.admission import Admission
from wire.deadline import Deadline
from wire.errors import DeadlineExceeded, Overloaded


def soon(seconds: float = 5.0) -> Deadline:
    return Deadline.after(seconds)


async def hold(gate: Admission, release: asyncio.Event, order: list[int], number: int) -> None:
    async with gate.place(soon()):
        order.append(number)
        await release.wait()


async def test_places_and_queue_are_bounded_and_first_come_first_served() -> None:
    gate, release, order = Admission(1, 2, "the gate"), asyncio.Event(), list[int]()
    tasks = [asyncio.create_task(hold(gate, release, order, number)) for number in range(3)]
    await asyncio.sleep(0)
    assert (gate.active, gate.queued) == (1, 2)
    with pytest.raises(Overloaded, match="the gate is full: 1 requests run and 2 wait"):
        async with gate.place(soon()):
            pass
    release.set()
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2]
    assert (gate.active, gate.queued) == (0, 0)


async def test_waiting_ends_with_the_deadline() -> None:
    gate = Admission(1, 2, "the gate")
    async with gate.place(soon()):
        with pytest.raises(DeadlineExceeded, match="waited at the gate"):
            async with gate.place(soon(0.02)):
                pass
    assert (gate.active, gate.queued) == (0, 0)


async def test_a_caller_that_leaves_the_queue_takes_no_place_with_it() -> None:
    gate, release, order = Admission(1, 2, "the gate"), asyncio.Event(), list[int]()
    first = asyncio.create_task(hold(gate, release, order, 0))
    second = asyncio.create_task(hold(gate, release, order, 1))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    release.set()
    await first
    async with gate.place(soon(0.5)) as waited_ms:
        assert waited_ms < 100
    assert (gate.active, gate.queued) == (0, 0)


async def test_no_queue_at_all_refuses_at_once() -> None:
    gate = Admission(1, 0, "the gate")
    async with gate.place(soon()):
        with pytest.raises(Overloaded):
            async with gate.place(soon()):
                pass
