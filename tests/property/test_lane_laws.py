"""Laws of batching: whoever comes, leaves or was there before, an answer is the same; memory stays in bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from edge.engine.job import Ended, Event, Job, Served, Ticket, Token
from edge.engine.lane import Lane
from edge.engine.running import Running
from tests.fakes.steps import FakeSteps, expected
from wire.deadline import Deadline

SLOTS = 3
Asked = tuple[int, str, int, int, int, int | None]

_requests = st.tuples(
    st.integers(1, 240),  # prompt tokens
    st.sampled_from("ab"),  # tenant
    st.integers(1, 2),  # what the prompt is made of
    st.integers(1, 12),  # answer tokens
    st.integers(0, 6),  # steps before it arrives, after the one before
    st.none() | st.integers(0, 10),  # steps after which its caller leaves
)


def _decode(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(_requests, min_size=1, max_size=10),
    st.sampled_from([0, 2, 50]),
    st.sampled_from([0.0, 0.01, 1.0]),
    st.sampled_from([7, 1000]),
    st.booleans(),
)
def test_answers_do_not_depend_on_their_neighbours(
    requests: list[Asked], blocks: int, copy_s: float, trimmed: int, answers: bool
) -> None:
    asyncio.run(_answers_do_not_depend(requests, blocks, copy_s, trimmed, answers))


async def _answers_do_not_depend(
    requests: list[Asked], blocks: int, copy_s: float, trimmed: int, answers: bool
) -> None:
    steps = FakeSteps(slots=SLOTS, prefix_blocks=blocks, step_s=0.1, prefill_s=0.02, copy_s=copy_s, virtual=True)
    served = Served(steps, _decode, frozenset(), "m@1", 8, "d")
    events: dict[Ticket, list[Event]] = {}
    lane = Lane(served, lambda ticket, event: events[ticket].append(event), None, answers, steps.clock)
    arrivals, at = [], 0
    for prompt, tenant, kind, tokens, after, leaves in requests:
        at += after
        arrivals.append((at, leaves, Job(served, [kind] * prompt, tokens, Deadline.after(60), tenant=tenant)))
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
        rows, excess = lane.rows, lane.rows.held - lane.claimed
        while rows.trim(trimmed):
            pass
        assert all(far >= here for far, here in zip(rows._touched, steps.touched, strict=True))
        copied = rows._move.copied if rows._move else 0
        assert sum(rows._touched) <= rows.held == lane.claimed + copied
        assert copied <= excess
        lane.step()
        assert all(far >= here for far, here in zip(rows._touched, steps.touched, strict=True))
        assert sum(rows._touched) >= sum(sequence.length for sequence in lane.sequences)
        assert len({sequence.row for sequence in lane.sequences}) == lane.active, "a row each"
        step += 1
        assert step < 2000, "it must end"
    for running in admitted:
        told, job = events[running.ticket], running.job
        tokens = [event.token for event in told if isinstance(event, Token)]
        assert tokens == expected(job.prompt_ids, job.max_tokens)[: len(tokens)]
        ended = [event for event in told if isinstance(event, Ended)]
        assert len(ended) == (0 if running.ticket.cancelled and len(tokens) < job.max_tokens else 1)
        assert ended == told[-1:] or not ended
        assert running.cached <= max(len(job.prompt_ids) - 2, 0)
