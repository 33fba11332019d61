"""A law of batching: whoever comes, leaves or is prefilled beside a request, its answer is the same."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from edge.engine.job import Ended, Event, Job, Served, Ticket, Token
from edge.engine.lane import Lane, Running
from tests.fakes.steps import FakeSteps, expected
from wire.deadline import Deadline

SLOTS = 3

_requests = st.tuples(
    st.integers(1, 30),  # prompt tokens
    st.integers(1, 12),  # answer tokens
    st.integers(0, 6),  # steps before it arrives, after the one before
    st.none() | st.integers(0, 10),  # steps after which its caller leaves
)


def _decode(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


@settings(max_examples=150, deadline=None)
@given(st.lists(_requests, min_size=1, max_size=10))
def test_answers_do_not_depend_on_their_neighbours(requests: list[tuple[int, int, int, int | None]]) -> None:
    asyncio.run(_answers_do_not_depend(requests))


async def _answers_do_not_depend(requests: list[tuple[int, int, int, int | None]]) -> None:
    served = Served(FakeSteps(slots=SLOTS), _decode, frozenset(), "m@1", 8, "d")
    events: dict[Ticket, list[Event]] = {}
    lane = Lane(served, lambda ticket, event: events[ticket].append(event))
    arrivals, at = [], 0
    for index, (prompt, tokens, after, leaves) in enumerate(requests):
        at += after
        arrivals.append((at, leaves, Job(served, [index + 1] * prompt, tokens, Deadline.after(60))))
    waiting, leaving, admitted, step = list(arrivals), {}, [], 0
    while waiting or lane.active:
        for ticket in [ticket for ticket, when in leaving.items() if when <= step]:
            ticket.cancel()
        lane.drop_departed()
        while waiting and waiting[0][0] <= step and lane.active < SLOTS:
            _, leaves, job = waiting.pop(0)
            running = Running(Ticket(), job)
            events[running.ticket] = []
            admitted.append(running)
            if leaves is not None:
                leaving[running.ticket] = step + leaves
            lane.admit(running)
        lane.step()
        step += 1
        assert step < 2000, "it must end"
    for running in admitted:
        told, job = events[running.ticket], running.job
        tokens = [event.token for event in told if isinstance(event, Token)]
        assert tokens == expected(job.prompt_ids, job.max_tokens)[: len(tokens)]
        ended = [event for event in told if isinstance(event, Ended)]
        assert len(ended) == (0 if running.ticket.cancelled and len(tokens) < job.max_tokens else 1)
        assert ended == told[-1:] or not ended
