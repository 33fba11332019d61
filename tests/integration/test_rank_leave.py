"""How soon an answer that nobody waits for leaves the batch: the real loop over a tiny model, in this process.

A test from outside sees a cancellation's way through processes too; here it is counted from the moment
the engine has it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from cloud.config import EngineHostConfig, WeightPrecision
from cloud.rank.batching import Batch
from cloud.rank.chat import Chat
from cloud.rank.spec import from_config
from cloud.rank.transformers_engine import TransformersEngine
from tests.integration.cloud_process import ask, talkative_model
from wire.deadline import Deadline
from wire.errors import DeadlineExceeded
from wire.messages import Delta

LONG = 400


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TransformersEngine, Batch]]:
    import torch
    from transformers import AutoModelForCausalLM

    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("rank")
    model_dir = talkative_model(folder / "model")
    config = EngineHostConfig(
        model_dir=model_dir,
        name="tiny",
        precision=WeightPrecision.FLOAT32,
        max_batch=2,
        context_length=512,
        max_output_tokens=480,
    )
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    batch = Batch(model, config.max_batch, config.context_length, 60.0)
    batch.start()
    try:
        yield TransformersEngine(batch, Chat(model_dir), from_config(config, folder), "digest"), batch
    finally:
        batch.manager.stop(block=True, timeout=10.0)


@pytest.mark.parametrize("deltas", [1, 2, 5])
async def test_an_answer_that_is_left_takes_part_in_no_step_but_the_one_that_runs(
    rank: tuple[TransformersEngine, Batch], deltas: int
) -> None:
    engine, batch = rank
    events = engine.generate(ask(tokens=LONG), Deadline.after(30.0))
    seen = 0
    async for event in events:
        seen += isinstance(event, Delta)
        if seen == deltas:
            break
    assert batch.active == 1
    await events.aclose()
    left_at = batch.decode_steps
    async with asyncio.timeout(10.0):
        while batch.active:
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.1)
    # The step that was running may end; it was alone in the batch, so another one would have been for it.
    assert batch.decode_steps - left_at <= 1


async def test_an_answer_past_its_deadline_leaves_likewise(rank: tuple[TransformersEngine, Batch]) -> None:
    engine, batch = rank
    deadline = Deadline.after(0.1)
    with pytest.raises(DeadlineExceeded):
        async for _ in engine.generate(ask(tokens=LONG), deadline):
            await asyncio.sleep(0)
    left_at = batch.decode_steps
    await asyncio.sleep(0.2)
    assert batch.active == 0
    assert batch.decode_steps - left_at <= 1
