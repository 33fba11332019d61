"""The batcher of texts: company by length, bounds, deadlines, callers that leave, faults that stay alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from edge.classifier.batcher import BatcherSettings, TextBatcher
from edge.classifier.job import Labelled, Served, Waiting
from edge.classifier.pick import Bounds
from runtime.ort.classify import Encoded
from tests.fakes.labels import FakeLabels, expected
from wire.deadline import Deadline
from wire.errors import DeadlineExceeded, InvalidRequest, Overloaded, Unavailable, WeirError


def served(labels: FakeLabels, release: str = "m@1", precision: int = 8) -> Served:
    return Served(labels, release, precision, "d")


def row(length: int, first: int = 1) -> Encoded:
    return Encoded(tuple(range(first, first + length)))


@asynccontextmanager
async def batching(
    labels: FakeLabels, broken: list[str] | None = None, retired: list[int] | None = None, **settings: object
) -> AsyncIterator[TextBatcher]:
    told, gone = [] if broken is None else broken, [] if retired is None else retired
    made = TextBatcher(
        served(labels),
        BatcherSettings(**settings),
        told.append,
        lambda: gone.append(1),  # type: ignore[arg-type]
    )
    try:
        yield made
    finally:
        if labels.gate is not None:
            labels.gate.set()
        made.close()


def soon(seconds: float = 5.0) -> Deadline:
    return Deadline.after(seconds)


async def blocked(batcher: TextBatcher, labels: FakeLabels) -> asyncio.Future[Labelled]:
    """Has one text run, and not end, so that what comes now waits."""
    labels.gate = threading.Event()
    first = batcher.submit(batcher._current, row(4), soon())
    while not batcher.active:
        await asyncio.sleep(0.001)
    return first


async def test_a_lone_text_is_run_at_once_and_alone() -> None:
    labels = FakeLabels()
    async with batching(labels) as b:
        answer = await b.submit(served(labels), row(5), soon())
        assert answer.logits == tuple(expected(row(5)))
        assert labels.batches == [[5]]
        assert answer.queue_ms < 500


async def test_texts_that_wait_go_together_by_their_length() -> None:
    labels = FakeLabels()
    async with batching(labels, bounds=Bounds(8, 64, 0.2)) as b:
        first = await blocked(b, labels)
        rows = [row(length, 3 * length) for length in (4, 30, 5, 29, 4, 31, 5)]
        waiting = [b.submit(b._current, entry, soon()) for entry in rows]
        assert labels.gate is not None
        labels.gate.set()
        await first
        for entry, answer in zip(rows, await asyncio.gather(*waiting), strict=True):
            assert answer.logits == tuple(expected(entry))
        assert [sorted(batch) for batch in labels.batches[1:]] == [[4, 4, 5, 5], [29, 30], [31]]


async def test_a_full_queue_refuses_and_a_lone_text_does_not_count_as_waiting() -> None:
    labels = FakeLabels()
    async with batching(labels, max_queue=1) as b:
        first = await blocked(b, labels)
        second = b.submit(b._current, row(3), soon())
        with pytest.raises(Overloaded):
            b.submit(b._current, row(3), soon())
        assert (b.active, b.queued) == (1, 1)
        assert labels.gate is not None
        labels.gate.set()
        await asyncio.gather(first, second)
    async with batching(FakeLabels(), max_queue=0) as b:
        await b.submit(b._current, row(3), soon())


async def test_priority_and_value_go_first_and_age_makes_up_for_them() -> None:
    """A level is worth five seconds of waiting, as for decoders; equals go in the order they came."""
    labels = FakeLabels()
    async with batching(labels, bounds=Bounds(rows=1)) as b:
        first = await blocked(b, labels)
        current = b._current
        waiting = [
            b.submit(current, row(10), soon()),
            b.submit(current, row(11), soon()),
            b.submit(current, row(12), soon(), value=4.0),
            b.submit(current, row(13), soon(), priority=1),
            b.submit(current, row(14), soon(), priority=-1),
        ]
        old = Waiting(current, row(15), soon(), asyncio.get_running_loop().create_future(), -1)
        old.since, old.rank = old.since - 60, old.rank - 60
        with b._changed:
            b._waiting.insert(0, old)
        assert labels.gate is not None
        labels.gate.set()
        await asyncio.gather(first, *waiting, old.answer)
    assert [batch[0] for batch in labels.batches] == [4, 15, 12, 13, 10, 11, 14]


async def test_a_text_that_cannot_expect_its_turn_in_time_is_refused_at_once() -> None:
    labels = FakeLabels(step_s=0.2)
    async with batching(labels, bounds=Bounds(rows=1)) as b:
        await b.submit(b._current, row(4), soon())  # 50 ms a token
        running = b.submit(b._current, row(4), soon())
        while not b.active:
            await asyncio.sleep(0.001)
        before = b.submit(b._current, row(20), soon())
        with pytest.raises(Overloaded, match="its turn is expected in"):
            b.submit(b._current, row(4), soon(0.5))
        urgent = b.submit(b._current, row(4), soon(0.5), priority=8)
        await asyncio.gather(running, before, urgent)


async def test_deadlines_and_callers_that_left_are_heeded_before_a_batch() -> None:
    labels = FakeLabels()
    async with batching(labels) as b:
        first = await blocked(b, labels)
        late = b.submit(b._current, row(6), soon(0.02))
        gone = b.submit(b._current, row(6), soon())
        stays = b.submit(b._current, row(6), soon())
        gone.cancel()
        await asyncio.sleep(0.05)
        assert labels.gate is not None
        labels.gate.set()
        await asyncio.gather(first, stays)
        with pytest.raises(DeadlineExceeded):
            await late
        assert labels.batches == [[4], [6]]


async def test_one_bad_text_fails_alone() -> None:
    labels, broken = FakeLabels(poison=666, nonsense=777), []
    async with batching(labels, broken) as b:
        first = await blocked(b, labels)
        bad, mad = Encoded((5, 666, 7, 8)), Encoded((5, 777, 7, 8))
        waiting = [b.submit(b._current, entry, soon()) for entry in (row(4), bad, mad, row(4, 9))]
        assert labels.gate is not None
        labels.gate.set()
        await first
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(found[0], Labelled) and found[0].logits == tuple(expected(row(4)))
        assert isinstance(found[1], InvalidRequest)
        assert type(found[2]) is WeirError
        assert isinstance(found[3], Labelled) and found[3].logits == tuple(expected(row(4, 9)))
        assert not b.closed and broken == []


async def test_a_broken_model_fails_everybody_and_says_so_once() -> None:
    labels, broken = FakeLabels(broken=True), list[str]()
    async with batching(labels, broken) as b:
        with pytest.raises(Unavailable):
            await b.submit(b._current, row(4), soon())
        await asyncio.sleep(0.01)
        assert b.closed and len(broken) == 1
        with pytest.raises(Unavailable):
            b.submit(b._current, row(4), soon())


async def test_everybody_who_fails_with_a_model_gets_an_error_of_his_own() -> None:
    labels = FakeLabels(broken=True)
    async with batching(labels, linger_s=0.05) as b:
        asked = [b.submit(b._current, row(4), soon()) for _ in range(2)]
        first, second = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(first, Unavailable)
        assert isinstance(second, Unavailable)
        assert first is not second


async def test_waiting_texts_take_the_same_releases_new_weights_and_old_ones_are_let_go() -> None:
    old, new, retired = FakeLabels(), FakeLabels(), list[int]()
    async with batching(old, retired=retired) as b:
        first = await blocked(b, old)
        waiting = b.submit(b._current, row(4), soon())
        b.switch(served(new, precision=4))
        await asyncio.sleep(0.02)
        assert retired == []
        assert old.gate is not None
        old.gate.set()
        assert (await first).served.precision == 8
        assert (await waiting).served.precision == 4
        await asyncio.sleep(0.05)
        assert retired == [1]
        assert (old.batches, new.batches) == ([[4]], [[4]])


async def test_texts_of_another_release_end_on_their_own_weights() -> None:
    old, other = FakeLabels(), FakeLabels()
    async with batching(old) as b:
        first = await blocked(b, old)
        waiting = b.submit(b._current, row(4), soon())
        b.switch(served(other, "m@2"))
        assert old.gate is not None
        old.gate.set()
        await first
        assert (await waiting).served.release == "m@1"
        assert (await b.submit(b._current, row(4), soon())).served.release == "m@2"


async def test_who_lingers_waits_for_company_and_no_longer() -> None:
    labels = FakeLabels()
    async with batching(labels, linger_s=0.15) as b:
        one = b.submit(b._current, row(4), soon())
        await asyncio.sleep(0.03)
        other = b.submit(b._current, row(4), soon())
        await asyncio.gather(one, other)
        assert labels.batches == [[4, 4]]
        await asyncio.wait_for(b.submit(b._current, row(4), soon()), 1)


async def test_closing_fails_what_waits() -> None:
    labels = FakeLabels()
    async with batching(labels) as b:
        first = await blocked(b, labels)
        waiting = b.submit(b._current, row(4), soon())
        assert labels.gate is not None
        labels.gate.set()
        b.close()
        found = await asyncio.gather(first, waiting, return_exceptions=True)
        assert any(isinstance(one, Unavailable) for one in found)
