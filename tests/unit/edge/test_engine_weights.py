"""Weights that change in place of the old ones: nobody fails, and a failure brings the old ones back."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from edge.engine.config import EngineConfig
from edge.engine.room import Memory
from edge.engine.service import EngineService
from runtime.tokenizer import Tokenizer
from tests.fakes.shelf import Shelf
from tests.fakes.steps import FakeSteps
from tests.models import VOCABULARY, write_tokenizer
from wire.deadline import Deadline
from wire.errors import DeadlineExceeded, Overloaded, PreconditionFailed, Unavailable
from wire.messages import Final, GenerateRequest, Sampling
from wire.service import Call

MIB = 1 << 20
NO_ROOM_FOR_BOTH = Memory(resident=100 * MIB, freed=80 * MIB, free=1 << 40, budget=150 * MIB)
NO_ROOM_AT_ALL = Memory(resident=100 * MIB, freed=80 * MIB, free=1 << 40, budget=60 * MIB)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return Tokenizer.load(folder)


def steps(**settings: object) -> FakeSteps:
    return FakeSteps(vocab_size=VOCABULARY, **settings)  # type: ignore[arg-type]


def call(seconds: float = 20.0) -> Call:
    return Call(Deadline.after(seconds))


async def answer(service: EngineService, tokens: int = 8, seconds: float = 20.0) -> Final:
    request = GenerateRequest(prompt="hello", sampling=Sampling(max_tokens=tokens))
    events = [event async for event in service.generate(request, call(seconds))]
    assert isinstance(events[-1], Final)
    return events[-1]


@dataclass
class Bench:
    service: EngineService
    shelf: Shelf
    broken: list[str] = field(default_factory=list)

    async def until(self, condition: object) -> None:
        end = time.monotonic() + 5
        while not condition():  # type: ignore[operator]
            assert time.monotonic() < end, "it never came about"
            await asyncio.sleep(0.002)


@asynccontextmanager
async def bench(
    tokenizer: Tokenizer, *given: FakeSteps, memory: Memory = NO_ROOM_FOR_BOTH, **settings: object
) -> AsyncIterator[Bench]:
    config = EngineConfig(socket=Path("/nowhere"), release_dir=Path("m"), **{"slots": 2, **settings})  # type: ignore[arg-type]
    shelf, broken = Shelf(tokenizer, *given), []
    del given  # no frame of a test may keep weights alive
    shelf.needed_bytes = 100 * MIB
    service = EngineService(config, broken.append, shelf, lambda: memory)
    await service.load()
    try:
        yield Bench(service, shelf, broken)
    finally:
        if shelf.gate is not None:
            shelf.gate.set()
        service.close()


async def test_running_answers_end_on_the_old_weights_and_waiting_ones_take_the_new(tokenizer: Tokenizer) -> None:
    async with bench(tokenizer, steps(step_s=0.005), steps()) as b:
        b.shelf.gate = threading.Event()
        running = [asyncio.create_task(answer(b.service, 30)) for _ in range(3)]  # one of them waits for a slot
        await asyncio.sleep(0.02)
        change = asyncio.create_task(b.service.control.activate("", 4, call()))
        await asyncio.sleep(0.01)
        waiting = [asyncio.create_task(answer(b.service)) for _ in range(4)]
        old = await asyncio.gather(*running)
        assert {final.precision for final in old} == {8}
        assert not change.done() and not any(task.done() for task in waiting)
        status = await b.service.control.status(call())
        assert (status.state, status.queued, status.active) == ("ready", 4, 0)
        assert "short queue" in status.detail
        assert status.precision == 8
        description = await b.service.describe(call())
        assert description.ready and description.models[0].precision == 8
        b.shelf.gate.set()
        done = await change
        assert done.pause_ms > 50
        assert "short queue" in done.note and "memory_budget_bytes leaves 50 of 150 MiB" in done.note
        new = await asyncio.gather(*waiting)
        assert {final.precision for final in new} == {4}
        assert all(final.timings_ms["changing"] > 10 and final.timings_ms["tokenize"] < 1000 for final in new)
        assert not any("changing" in final.timings_ms for final in old)
        status = await b.service.control.status(call())
        assert (status.detail, status.precision, status.decode_steps > 40) == ("", 4, True)


async def test_with_room_for_both_nobody_waits(tokenizer: Tokenizer) -> None:
    async with bench(tokenizer, steps(), steps(), memory=Memory(0, 0, 1 << 40)) as b:
        b.shelf.gate = threading.Event()
        change = asyncio.create_task(b.service.control.activate("", 4, call()))
        await asyncio.sleep(0.02)
        assert (await answer(b.service)).precision == 8
        b.shelf.gate.set()
        done = await change
        assert (done.pause_ms, done.note) == (0, "")


async def test_what_is_promised_to_answers_is_not_given_to_a_load(tokenizer: Tokenizer) -> None:
    memory = Memory(resident=100 * MIB, freed=80 * MIB, free=1 << 40, budget=210 * MIB)
    async with bench(tokenizer, steps(), steps(), memory=memory) as b:
        assert (await b.service.control.activate("", 4, call())).pause_ms == 0
    large = 1 << 15  # bytes a token: 16 MiB of KV are promised
    async with bench(tokenizer, steps(kv_bytes=large), steps(), memory=memory) as b:
        done = await b.service.control.activate("", 4, call())
        assert done.pause_ms > 0
        assert "16 of them promised to answers" in done.note


async def test_kv_memory_is_told_anew_for_other_weights_and_when_the_old_ones_have_gone(tokenizer: Tokenizer) -> None:
    memory = Memory(0, 0, 128 * MIB)
    config = EngineConfig(socket=Path("/nowhere"), release_dir=Path("m"), slots=2)
    small, large = {"capacity": 2048, "kv_bytes": 1 << 16}, {"capacity": 2048, "kv_bytes": 1 << 18}
    shelf = Shelf(tokenizer, steps(step_s=0.005, **small), steps(**large))
    service = EngineService(config, print, shelf, lambda: memory)
    await service.load()

    async def told() -> int:
        return (await service.control.status(call())).kv_tokens

    try:
        assert await told() == 2048
        memory = Memory(0, 0, 200 * MIB)
        running = asyncio.create_task(answer(service, 60))
        await asyncio.sleep(0.02)
        await service.control.activate("", 4, call())
        # 200 MiB are 800 tokens; what the running answer has taken counts beside them until it ends.
        assert 800 <= await told() <= 800 + 80 // 4
        memory = Memory(0, 0, 256 * MIB)
        assert (await running).precision == 8
        end = time.monotonic() + 5
        while await told() != 1024:
            assert time.monotonic() < end, "the old weights have gone, and their memory is not promised anew"
            await asyncio.sleep(0.002)
    finally:
        service.close()


async def test_the_old_weights_are_gone_before_the_new_ones_come(tokenizer: Tokenizer) -> None:
    old = steps()
    gone = weakref.ref(old)
    async with bench(tokenizer, old, steps()) as b:
        del old
        b.shelf.gate = threading.Event()
        with pytest.raises(DeadlineExceeded):  # its error may hold on to frames that know the weights
            await answer(b.service, 100, seconds=0.0)
        await answer(b.service)
        change = asyncio.create_task(b.service.control.activate("", 4, call()))
        await b.until(lambda: gc.collect() >= 0 and gone() is None)
        assert not change.done()
        b.shelf.gate.set()
        await change


async def test_weights_that_fail_bring_the_old_ones_back_and_nobody_fails(tokenizer: Tokenizer) -> None:
    async with bench(tokenizer, steps(step_s=0.002), steps()) as b:
        b.shelf.gate = threading.Event()
        b.shelf.faults = [PreconditionFailed("the 4-bit weights failed their self-test")]
        running = asyncio.create_task(answer(b.service, 20))
        await asyncio.sleep(0.01)
        change = asyncio.create_task(b.service.control.activate("/other", 4, call()))
        await asyncio.sleep(0.01)
        waiting = [asyncio.create_task(answer(b.service)) for _ in range(3)]
        await asyncio.sleep(0.05)
        b.shelf.gate.set()
        with pytest.raises(PreconditionFailed, match=r"old ones serve again: .* failed their self-test"):
            await change
        assert {final.precision for final in await asyncio.gather(running, *waiting)} == {8}
        assert b.shelf.loaded == [("m", 8), ("m", 8)]
        assert (await b.service.control.status(call())).precision == 8
        assert not b.broken


async def test_without_any_weights_the_process_is_to_be_replaced(tokenizer: Tokenizer) -> None:
    async with bench(tokenizer, steps()) as b:
        b.shelf.gate = threading.Event()
        b.shelf.faults = [RuntimeError("new"), OSError("the disk is gone")]
        change = asyncio.create_task(b.service.control.activate("", 4, call()))
        await asyncio.sleep(0.02)
        waiting = asyncio.create_task(answer(b.service))
        await asyncio.sleep(0.01)
        b.shelf.gate.set()
        with pytest.raises(OSError, match="the disk is gone"):
            await change
        with pytest.raises(Unavailable, match="being restarted"):
            await waiting
        assert "neither the new weights nor the old ones" in b.broken[0]
        assert (await b.service.control.status(call())).state == "down"


async def test_what_finds_no_room_even_alone_is_refused_before_anybody_waits(tokenizer: Tokenizer) -> None:
    async with bench(tokenizer, steps(), memory=NO_ROOM_AT_ALL) as b:
        with pytest.raises(Overloaded, match="even without the running ones"):
            await b.service.control.activate("", 4, call())
        assert (await answer(b.service)).precision == 8


async def test_answers_that_do_not_end_in_time_leave_everything_as_it_was(tokenizer: Tokenizer) -> None:
    async with bench(tokenizer, steps(step_s=0.01)) as b:
        running = asyncio.create_task(answer(b.service, 60))
        await asyncio.sleep(0.02)
        change = asyncio.create_task(b.service.control.activate("", 4, call(0.2)))
        await asyncio.sleep(0.01)
        waiting = asyncio.create_task(answer(b.service, 2))
        with pytest.raises((Overloaded, DeadlineExceeded), match="nothing was changed"):
            await change
        assert {final.precision for final in await asyncio.gather(running, waiting)} == {8}


async def test_the_queue_of_a_change_is_bounded_and_keeps_deadlines(tokenizer: Tokenizer) -> None:
    async with bench(tokenizer, steps(), steps(), max_queue=2) as b:
        b.shelf.gate = threading.Event()
        change = asyncio.create_task(b.service.control.activate("", 4, call()))
        await b.until(lambda: b.service.control.weights.gate.closed)
        late = asyncio.create_task(answer(b.service, seconds=0.1))
        waiting = [asyncio.create_task(answer(b.service)) for _ in range(3)]
        await asyncio.sleep(0.02)
        with pytest.raises(Overloaded, match="of at most 4"):
            await answer(b.service)
        with pytest.raises(DeadlineExceeded, match="weights were being changed"):
            await late
        b.shelf.gate.set()
        await change
        assert {final.precision for final in await asyncio.gather(*waiting)} == {4}


async def test_a_request_that_cannot_outlast_the_change_is_refused_at_once(tokenizer: Tokenizer) -> None:
    async with bench(tokenizer, steps(step_s=0.02), steps()) as b:
        await answer(b.service)  # so that it is known how long a step takes
        running = asyncio.create_task(answer(b.service, 50))
        await asyncio.sleep(0.05)
        change = asyncio.create_task(b.service.control.activate("", 4, call()))
        await b.until(lambda: b.service.control.weights.gate.closed)
        began = time.monotonic()
        with pytest.raises(Overloaded, match="weights are being changed"):
            await answer(b.service, seconds=0.3)
        assert time.monotonic() - began < 0.2
        assert (await running).precision == 8
        assert (await change).precision == 4


async def test_a_change_whose_caller_leaves_is_finished_all_the_same(tokenizer: Tokenizer) -> None:
    async with bench(tokenizer, steps(), steps()) as b:
        b.shelf.gate = threading.Event()
        change = asyncio.create_task(b.service.control.activate("", 4, call()))
        await b.until(lambda: b.service.control.weights.gate.closed)
        change.cancel()
        await asyncio.gather(change, return_exceptions=True)
        waiting = asyncio.create_task(answer(b.service))
        b.shelf.gate.set()
        assert (await waiting).precision == 4


async def test_many_changes_under_load_fail_nobody(tokenizer: Tokenizer) -> None:
    async with bench(tokenizer, *(steps(step_s=0.001) for _ in range(9)), max_queue=32) as b:

        async def ask_on(seen: list[int]) -> None:
            while not done.is_set():
                seen.append((await answer(b.service, 6)).precision)

        done, seen = asyncio.Event(), []
        load = [asyncio.create_task(ask_on(seen)) for _ in range(6)]
        for precision in (4, 8) * 4:
            await asyncio.sleep(0.03)
            assert (await b.service.control.activate("", precision, call())).pause_ms > 0
        done.set()
        await asyncio.gather(*load)
        assert set(seen) == {4, 8}
        assert len(b.shelf.loaded) == 9
