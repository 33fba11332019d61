"""One computation per key: attach, replay, conflict, failure, leaving, bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from cloud.gateway.idempotency import IdempotencyTable
from wire.deadline import Deadline
from wire.errors import Conflict, DeadlineExceeded, Overloaded, Unavailable, WeirError
from wire.messages import Committed, Context, Delta, Final, GenerateEvent, GenerateRequest, Reason, Tier, Usage

ASK = GenerateRequest(model="m", prompt="hi", idempotency_key="k")


class Work:
    """Counts computations; each waits for `go` before its last event."""

    def __init__(self, error: WeirError | None = None) -> None:
        self.started = self.closed = 0
        self.go = asyncio.Event()
        self.error = error

    async def run(self) -> AsyncGenerator[GenerateEvent, None]:
        self.started += 1
        try:
            yield Committed(Tier.CLOUD, Reason.CLOUD_ONLY, "first")
            yield Delta("a", (1,), (-0.5,))
            await self.go.wait()
            if self.error is not None:
                raise self.error
            yield Delta("b", (2,), (-0.25,))
            yield Final("stop", Usage(1, 2), Tier.CLOUD, request_id="first")
        finally:
            self.closed += 1


async def read(
    table: IdempotencyTable, work: Work, request: GenerateRequest = ASK, seconds: float = 5.0
) -> list[GenerateEvent]:
    return [event async for event in table.stream(request, Deadline.after(seconds), work.run)]


async def test_a_second_caller_reads_along_from_the_first_event() -> None:
    table, work = IdempotencyTable(60.0, 8), Work()
    first = asyncio.create_task(read(table, work))
    await asyncio.sleep(0.01)
    second = asyncio.create_task(read(table, work))
    await asyncio.sleep(0.01)
    work.go.set()
    assert await first == await second
    assert work.started == 1


async def test_an_answer_is_replayed_with_its_text_in_one_piece() -> None:
    table, work = IdempotencyTable(60.0, 8), Work()
    work.go.set()
    await read(table, work)
    committed, delta, final = await read(table, work, replace(ASK, request_id="mine"))
    assert isinstance(committed, Committed)
    assert isinstance(final, Final)
    assert committed.request_id == final.request_id == "mine"
    assert delta == Delta("ab", (1, 2), (-0.5, -0.25))
    assert work.started == 1


async def test_the_same_key_for_another_question_conflicts_and_other_tenants_do_not_meet() -> None:
    table, work = IdempotencyTable(60.0, 8), Work()
    work.go.set()
    await read(table, work)
    with pytest.raises(Conflict, match="use a new key"):
        await read(table, work, replace(ASK, prompt="something else"))
    await read(table, work, replace(ASK, prompt="something else", context=Context(tenant="other")))
    assert work.started == 2


async def test_a_failure_is_not_an_answer() -> None:
    table, failing, working = IdempotencyTable(60.0, 8), Work(Unavailable("gone")), Work()
    failing.go.set()
    working.go.set()
    with pytest.raises(Unavailable):
        await read(table, failing)
    assert len(await read(table, working)) == 4


async def test_the_work_ends_when_the_last_reader_leaves_and_not_before() -> None:
    table, work = IdempotencyTable(60.0, 8), Work()
    readers = [table.stream(ASK, Deadline.after(5.0), work.run) for _ in range(2)]
    for reader in readers:
        await anext(reader)
    await readers[0].aclose()
    assert work.closed == 0
    await readers[1].aclose()
    assert work.closed == 1
    assert len(table) == 0


async def test_a_readers_own_deadline_holds() -> None:
    table, work = IdempotencyTable(60.0, 8), Work()
    with pytest.raises(DeadlineExceeded):
        await read(table, work, seconds=0.05)
    assert work.closed == 1


async def test_entries_expire_and_are_bounded() -> None:
    clock = [0.0]
    table, work = IdempotencyTable(60.0, 2, lambda: clock[0]), Work()
    work.go.set()
    for key in "abc":
        clock[0] += 1
        await read(table, work, replace(ASK, idempotency_key=key))
    assert len(table) == 2
    await read(table, work, replace(ASK, idempotency_key="c"))
    assert work.started == 3
    clock[0] += 61
    await read(table, work, replace(ASK, idempotency_key="c"))
    assert work.started == 4


async def test_running_entries_are_never_thrown_out() -> None:
    table, work = IdempotencyTable(60.0, 1), Work()
    reader = table.stream(ASK, Deadline.after(5.0), work.run)
    await anext(reader)
    with pytest.raises(Overloaded):
        await read(table, work, replace(ASK, idempotency_key="other"))
    await reader.aclose()
