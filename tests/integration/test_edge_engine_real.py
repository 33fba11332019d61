"""The engine process with real weights: sensible answers, real streams, both precisions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.engine_process import Engine, ask, call, engine
from wire.messages import Delta

pytestmark = pytest.mark.real_model

QUESTION = "What is the capital of France?"


@pytest.fixture
async def running(smollm2_release: Path) -> AsyncIterator[Engine]:
    async with engine(smollm2_release, slots=2, context_length=1024) as e:
        yield e


async def test_both_precisions_answer_a_question_each_with_its_own_weights(running: Engine) -> None:
    digests = set()
    for precision in (8, 4):
        await running.control.activate("", precision, call(60))
        answer = await running.answer(ask(QUESTION, 32, return_signals=True), 60)
        assert "Paris" in answer.text
        assert answer.final.finish_reason == "stop"
        assert answer.final.signals is not None and answer.final.signals.max_entropy > 0
        digests.add(answer.final.weight_digest)
    assert len(digests) == 2


async def test_the_first_words_come_long_before_the_last(running: Engine) -> None:
    answer = await running.answer(ask("Tell me a story about a river.", 48), 60)
    assert answer.final.usage.completion_tokens >= 16
    assert answer.at[0] < answer.total_s / 2


async def test_a_caller_that_leaves_frees_its_slot_within_one_decode_step(running: Engine) -> None:
    stream = running.inference.generate(ask("Tell me a story about a river.", 400), call(60))
    seen = 0
    async for event in stream:
        seen += isinstance(event, Delta)
        if seen == 3:
            break
    before = (await running.status()).decode_steps
    await stream.aclose()
    end = time.monotonic() + 5
    while (status := await running.status()).active and time.monotonic() < end:
        await asyncio.sleep(0.002)
    assert status.active == 0
    # One step may run while the cancellation travels, one while it is noticed.
    assert status.decode_steps - before <= 2
    await asyncio.sleep(0.2)
    assert (await running.status()).decode_steps == status.decode_steps


async def test_answers_decoded_together_are_those_decoded_alone(running: Engine) -> None:
    questions = (QUESTION, "Name a color of the rainbow.")
    alone = [(await running.answer(ask(question, 24), 60)).text for question in questions]
    together = await asyncio.gather(*(running.answer(ask(question, 24), 60) for question in questions))
    assert [answer.text for answer in together] == alone
