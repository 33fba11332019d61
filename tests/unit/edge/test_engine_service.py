"""The engine's service over a model in memory: what it refuses, how it ends, who is told."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from edge.engine.config import EngineConfig
from edge.engine.endings import BROKEN
from edge.engine.main import serve
from edge.engine.service import EngineService
from runtime.tokenizer import Tokenizer
from tests.fakes.shelf import Shelf
from tests.fakes.steps import FakeSteps
from tests.models import VOCABULARY, write_tokenizer
from wire.deadline import Deadline
from wire.errors import Conflict, ContextTooLong, Overloaded, PreconditionFailed, Unavailable
from wire.grpc_client import InferenceClient
from wire.messages import Committed, Delta, Final, GenerateRequest, Sampling
from wire.service import Call


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return Tokenizer.load(folder)


def steps(**settings: object) -> FakeSteps:
    return FakeSteps(vocab_size=VOCABULARY, **settings)  # type: ignore[arg-type]


def config(**settings: object) -> EngineConfig:
    return EngineConfig(socket=Path("/nowhere"), release_dir=Path("m"), slots=4, **settings)  # type: ignore[arg-type]


def call() -> Call:
    return Call(Deadline.after(20))


def ask(tokens: int = 8, prompt: str = "hello") -> GenerateRequest:
    return GenerateRequest(prompt=prompt, sampling=Sampling(max_tokens=tokens))


async def answer(service: EngineService, request: GenerateRequest) -> list[object]:
    return [event async for event in service.generate(request, call())]


@pytest.fixture
async def loaded(tokenizer: Tokenizer) -> AsyncIterator[EngineService]:
    service = EngineService(config(), print, Shelf(tokenizer, steps()))
    await service.load()
    yield service
    service.close()


async def test_an_answer_is_committed_once_then_told_then_closed(loaded: EngineService) -> None:
    events = await answer(loaded, ask())
    assert isinstance(events[0], Committed)
    assert all(isinstance(event, Delta) for event in events[1:-1])
    assert isinstance(events[-1], Final)
    assert events[-1].usage.completion_tokens == 8


async def test_while_it_loads_it_says_so(tokenizer: Tokenizer) -> None:
    shelf = Shelf(tokenizer, steps())
    shelf.gate = threading.Event()
    service = EngineService(config(), print, shelf)
    loading = asyncio.create_task(service.load())
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="still loading"):
        await answer(service, ask())
    description = await service.describe(call())
    assert (description.ready, description.not_ready_reason, description.models) == (False, "starting", ())
    assert (await service.control.status(call())).state == "starting"
    shelf.gate.set()
    await loading
    assert (await service.describe(call())).ready
    service.close()


async def test_a_precision_that_arrives_in_the_folder_is_described_without_a_reload(tokenizer: Tokenizer) -> None:
    shelf = Shelf(tokenizer, steps())
    service = EngineService(config(), print, shelf)
    await service.load()
    assert (await service.describe(call())).models[0].precisions_available == (4,)
    shelf.here = (4, 8)
    assert (await service.describe(call())).models[0].precisions_available == (4, 8)
    service.close()


async def test_the_numbers_of_a_context_that_is_too_long_are_said(loaded: EngineService) -> None:
    with pytest.raises(ContextTooLong, match=r"the prompt has \d+ tokens; this model's context holds 256"):
        await answer(loaded, ask(prompt="z" * 400))
    with pytest.raises(ContextTooLong, match=r"max_tokens is 100, together \d+.*holds 256.*ask for at most \d+"):
        await answer(loaded, ask(100, prompt="z" * 200))


async def test_requests_that_are_still_tokenized_count_as_well(tokenizer: Tokenizer) -> None:
    service = EngineService(config(max_queue=2), print, Shelf(tokenizer, steps(step_s=0.001)))
    await service.load()
    results = await asyncio.gather(*(answer(service, ask()) for _ in range(9)), return_exceptions=True)
    assert sum(isinstance(result, Overloaded) for result in results) == 3
    assert len(await answer(service, ask())) > 2
    service.close()


async def test_the_old_weights_answer_while_the_new_ones_load(tokenizer: Tokenizer) -> None:
    shelf = Shelf(tokenizer, steps(), steps())
    service = EngineService(config(), print, shelf)
    await service.load()
    shelf.gate = threading.Event()
    activating = asyncio.create_task(service.control.activate("", 4, call()))
    await asyncio.sleep(0.01)
    final = (await answer(service, ask()))[-1]
    assert isinstance(final, Final) and final.weight_digest == "digest-8"
    shelf.gate.set()
    assert (await activating).weight_digest == "digest-4"
    final = (await answer(service, ask()))[-1]
    assert isinstance(final, Final) and (final.weight_digest, final.precision) == ("digest-4", 4)
    service.close()


async def test_weights_that_cannot_be_loaded_change_nothing(tokenizer: Tokenizer) -> None:
    shelf = Shelf(tokenizer, steps())
    service = EngineService(config(), print, shelf)
    await service.load()
    shelf.faults = [PreconditionFailed("damaged")]
    with pytest.raises(PreconditionFailed, match="damaged"):
        await service.control.activate("", 4, call())
    shelf.check_fault = Conflict("busy")
    with pytest.raises(Conflict):
        await service.control.activate("/other", 8, call())
    status = await service.control.status(call())
    assert (status.state, status.precision) == ("ready", 8)
    service.close()


async def test_a_broken_model_ends_the_process_with_its_own_code_and_its_answers_as_unavailable(
    tokenizer: Tokenizer,
) -> None:
    with tempfile.TemporaryDirectory(prefix="weir-") as folder:
        own = EngineConfig(socket=Path(folder) / "e.sock", release_dir=Path("m"))
        ended = asyncio.create_task(serve(own, Shelf(tokenizer, steps(break_at=5, step_s=0.005))))
        client = InferenceClient(f"unix:{own.socket}")
        for _ in range(200):
            try:
                if (await client.describe(call())).ready:
                    break
            except Unavailable:
                await asyncio.sleep(0.01)
        with pytest.raises(Unavailable, match="being restarted"):
            async for _ in client.generate(ask(100), call()):
                pass
        assert await asyncio.wait_for(ended, 10) == BROKEN
        await client.close()
