"""Answers held to something in the decode thread: what it allows, when it ends, and that its failure stays alone."""

from __future__ import annotations

import asyncio

import numpy as np
import numpy.typing as npt
import pytest

from runtime.ort.sampling import ConstraintFailed
from tests.fakes.steps import FakeSteps, expected
from tests.unit.edge.test_engine_batcher import bench, collect, job
from wire.errors import CannotConstrain

ONLY = 11


class Only:
    """Allows one token, `times` of it, and then breaks or ends."""

    def __init__(self, times: int, breaks: bool = False) -> None:
        self.left, self.breaks = times, breaks

    def mask(self) -> npt.NDArray[np.uint32] | None:
        if self.breaks and not self.left:
            raise ConstraintFailed("the answer's grammar became too complex: too many states")
        bits = np.zeros(64, np.uint32)
        bits[ONLY // 32] = 1 << ONLY % 32
        return bits

    def accept(self, token: int) -> bool:
        assert token == ONLY
        self.left -= 1
        return not self.breaks and not self.left


async def test_an_answer_holds_what_is_allowed_and_ends_when_it_is_whole() -> None:
    async with bench(FakeSteps(slots=2)) as b:
        free = b.batcher.submit(job(b.served, tokens=8))
        held = b.batcher.submit(job(b.served, tokens=8, constraint=Only(3)))
        (free_tokens, _), (tokens, ended) = await asyncio.gather(collect(free), collect(held))
    assert tokens == [ONLY] * 3
    assert ended.finish_reason == "stop"
    assert free_tokens == expected((5, 6, 7), 8)


async def test_what_cannot_be_held_any_more_ends_alone_and_is_no_fault_of_the_engine() -> None:
    async with bench(FakeSteps(slots=2)) as b:
        free = b.batcher.submit(job(b.served, tokens=12))
        held = b.batcher.submit(job(b.served, tokens=12, constraint=Only(2, breaks=True)))
        with pytest.raises(CannotConstrain, match="too complex"):
            await collect(held)
        assert (await collect(free))[0] == expected((5, 6, 7), 12)
        assert not b.broken
