"""The engine as its own process: streaming, leaving, bad input, new weights under load, sudden death."""

from __future__ import annotations

import asyncio
import math
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc.aio
import pytest

from edge.engine.config import EngineConfig
from edge.engine.endings import UNUSABLE
from release.folder import open_release
from tests.integration.engine_process import Engine, ask, call, connected, engine, process, start
from wire.errors import (
    ContextTooLong,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    Overloaded,
    PreconditionFailed,
    TooLarge,
    Unavailable,
    WeirError,
)
from wire.messages import Committed, Delta, Draft, GenerateRequest, Message, ResponseFormat, Sampling, Tier
from wire.scoring import ScoreRequest

SETTINGS = {"slots": 2, "max_queue": 4, "context_length": 512, "max_output_tokens": 400}


@pytest.fixture(scope="module")
def shared(tiny_release: Path) -> Iterator[tuple[subprocess.Popen[bytes], EngineConfig]]:
    """One process for the tests that leave it as they found it."""
    with process(tiny_release, **SETTINGS) as running:
        yield running


@pytest.fixture
async def running(shared: tuple[subprocess.Popen[bytes], EngineConfig]) -> AsyncIterator[Engine]:
    async with connected(shared) as e:
        yield e


@pytest.fixture
async def own(tiny_release: Path) -> AsyncIterator[Engine]:
    """A process of the test's own."""
    async with engine(tiny_release, **SETTINGS) as e:
        yield e


async def test_an_answer_names_the_weights_and_the_time_it_took(running: Engine, tiny_release: Path) -> None:
    answer = await running.answer(
        ask(tokens=24, request_id="r-1", return_logprobs=True, return_signals=True, hops=1), 20
    )
    release, final = open_release(tiny_release), answer.final
    assert (final.tier, final.release, final.precision) == (Tier.EDGE, release.id, 8)
    assert (final.weight_digest, final.weight_format) == (release.weight_digest(8), "nested-8")
    assert (final.request_id, final.node, final.hops) == ("r-1", "edge", 1)
    assert set(final.timings_ms) == {"tokenize", "queue", "prefill", "decode", "ttft", "total"}
    assert final.timings_ms["total"] <= answer.total_s * 1e3
    tokens = [token for delta in answer.deltas for token in delta.token_ids]
    logprobs = [value for delta in answer.deltas for value in delta.logprobs]
    assert len(tokens) == len(logprobs) == final.usage.completion_tokens <= 24
    assert final.signals is not None
    assert final.signals.sum_logprob == pytest.approx(sum(logprobs), abs=1e-4)
    assert final.signals.min_logprob == pytest.approx(min(logprobs), abs=1e-6)
    assert final.signals.prompt_tokens == final.usage.prompt_tokens


async def test_token_ids_and_signals_come_only_when_asked_for(running: Engine) -> None:
    answer = await running.answer(ask())
    assert all(not delta.token_ids and delta.signals is None for delta in answer.deltas)
    assert answer.final.signals is None


async def test_streaming_is_real(running: Engine) -> None:
    answer = await running.answer(ask(tokens=300))
    assert answer.final.usage.completion_tokens >= 16
    assert answer.at[0] < answer.total_s / 2
    assert len(set(answer.at)) > 8


async def test_greedy_answers_repeat_whoever_runs_beside_them(running: Engine) -> None:
    alone = (await running.answer(ask("Please cancel the order.", 40))).text
    others = [running.answer(ask(f"question {i} of several", 20 + i)) for i in range(3)]
    together, *_ = await asyncio.gather(running.answer(ask("Please cancel the order.", 40)), *others)
    assert together.text == alone


async def test_a_caller_that_leaves_frees_the_slot_within_a_step(running: Engine) -> None:
    before = (await running.status()).decode_steps
    stream = running.inference.generate(ask(tokens=400), call())
    async for event in stream:
        if isinstance(event, Delta):
            break
    await stream.aclose()
    end = time.monotonic() + 5
    while (status := await running.status()).active and time.monotonic() < end:
        await asyncio.sleep(0.005)
    assert status.active == 0
    # Steps of so small a model are as short as the way of the cancellation over the socket; that one
    # step is the bound is shown by the batcher's tests and with real weights.
    assert status.decode_steps - before < 300
    assert (await running.status()).decode_steps == status.decode_steps


BAD: list[tuple[GenerateRequest, type[WeirError], str]] = [
    (GenerateRequest(), InvalidRequest, "messages is empty"),
    (ask(tokens=-1), InvalidRequest, "max_tokens is -1"),
    (ask(tokens=401), InvalidRequest, "at most 400"),
    (GenerateRequest(prompt="x", sampling=Sampling(temperature=float("nan"))), InvalidRequest, "temperature is nan"),
    (ask(model="no-such-model"), NotFound, "this engine serves 'tiny'"),
    (ask("x" * (2 << 20)), TooLarge, "at most 1048576"),
    (ask("water " * 2000), ContextTooLong, "context holds 512"),
    (ask("water " * 60, 400), ContextTooLong, "max_tokens is 400"),
    (GenerateRequest(prompt="x", sampling=Sampling(logit_bias={9999: 1.0})), InvalidRequest, "names token 9999"),
    (ask(response_format=ResponseFormat("poem")), InvalidRequest, "'poem'"),
    (ask(response_format=ResponseFormat("choice", choices=("a",)), stop=("b",)), InvalidRequest, "stop does not go"),
]


async def test_bad_input_is_refused_by_name_and_disturbs_nobody(running: Engine) -> None:
    good = asyncio.create_task(running.answer(ask(tokens=200)))
    for request, kind, message in BAD:
        with pytest.raises(kind, match=message):
            await running.answer(request)
    assert (await good).final.usage.completion_tokens > 0
    assert (await running.answer(ask())).final.finish_reason in ("stop", "length")


async def test_bytes_that_are_no_message_are_the_callers_fault(running: Engine) -> None:
    async with grpc.aio.insecure_channel(f"unix:{running.config.socket}") as channel:
        generate = channel.unary_stream("/weir.v1.Inference/Generate")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in generate(b"\x1a\x02\xff\xfe", timeout=5):
                pass
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_without_max_tokens_the_answer_takes_what_fits(running: Engine) -> None:
    prompt = GenerateRequest(prompt="water " * 80)
    final = (await running.answer(prompt)).final
    assert 0 < final.usage.completion_tokens <= 512 - final.usage.prompt_tokens


async def test_a_stop_sequence_ends_the_answer_and_is_not_shown(running: Engine) -> None:
    text = (await running.answer(ask(tokens=60))).text
    stop = text[len(text) // 2 :][:3]
    stopped = await running.answer(ask(tokens=60, stop=(stop,)))
    assert stopped.text == text[: text.index(stop)]
    assert stopped.final.finish_reason == "stop"


async def test_equal_seeds_repeat(running: Engine) -> None:
    def sampled(seed: int) -> GenerateRequest:
        sampling = Sampling(max_tokens=20, temperature=1.0, top_p=0.95, top_k=40, seed=seed)
        return GenerateRequest(messages=(Message("user", "hello"),), sampling=sampling)

    one, again, other = [(await running.answer(sampled(seed))).text for seed in (1, 1, 2)]
    assert one == again != other


async def test_a_draft_is_not_used_and_that_is_said(running: Engine) -> None:
    draft = Draft("other@1", 4, "", "", (1, 2, 3), (-0.1, -0.1, -0.1))
    final = (await running.answer(ask(draft=draft))).final
    assert (final.draft_status, final.draft_tokens_offered, final.draft_tokens_accepted) == ("unsupported", 3, 0)


async def test_the_deadline_ends_an_answer(tiny_release: Path) -> None:
    async with engine(tiny_release, slots=1, threads=1) as e:
        waiting = [asyncio.create_task(e.answer(ask(tokens=400))) for _ in range(6)]
        await asyncio.sleep(0.05)
        began = time.monotonic()
        # Told at once where the queue is known to be longer, else when the time is over.
        with pytest.raises((DeadlineExceeded, Overloaded)):
            await e.answer(ask(tokens=400), seconds=0.05)
        assert time.monotonic() - began < 2
        await asyncio.gather(*waiting)


async def test_a_full_queue_says_so(tiny_release: Path) -> None:
    async with engine(tiny_release, slots=1, max_queue=1) as e:
        answers = await asyncio.gather(*(e.answer(ask(tokens=400)) for _ in range(6)), return_exceptions=True)
        refused = [a for a in answers if isinstance(a, Overloaded)]
        assert refused and len(refused) < 6
        assert all(isinstance(a, Overloaded) or not isinstance(a, BaseException) for a in answers)


async def test_other_weights_come_into_force_under_load_without_a_failure(own: Engine, tiny_release: Path) -> None:
    async def stream_answers(seen: list[tuple[int, str]]) -> None:
        while not done.is_set():
            final = (await own.answer(ask(tokens=48))).final
            seen.append((final.precision, final.weight_digest))

    done, seen = asyncio.Event(), []
    load = [asyncio.create_task(stream_answers(seen)) for _ in range(3)]
    activations = []
    for precision in (4, 8, 4):
        await asyncio.sleep(0.1)
        activation = await own.control.activate("", precision, call())
        assert activation.precision == precision
        assert activation.load_ms > 0
        activations.append(activation)
        assert (await own.answer(ask())).final.weight_digest == activation.weight_digest
    done.set()
    await asyncio.gather(*load)
    release = open_release(tiny_release)
    assert set(seen) <= {(4, release.weight_digest(4)), (8, release.weight_digest(8))}
    assert {precision for precision, _ in seen} == {4, 8}
    assert (await own.status()).precision == 4
    again = await own.control.activate(str(tiny_release), 4, call())
    assert again.load_ms == 0


async def test_what_cannot_be_put_in_force_leaves_the_old_weights_serving(own: Engine, tmp_path: Path) -> None:
    for directory, precision, kind in ((str(tmp_path / "none"), 4, NotFound), ("", 5, InvalidRequest)):
        with pytest.raises(kind):
            await own.control.activate(directory, precision, call())
    (tmp_path / "empty").mkdir()
    with pytest.raises(PreconditionFailed, match="manifest"):
        await own.control.activate(str(tmp_path / "empty"), 4, call())
    assert (await own.answer(ask())).final.precision == 8


async def test_describe_and_status_say_what_is_served(running: Engine) -> None:
    description = await running.inference.describe(call(), probe_bytes=1000)
    (model,) = description.models
    assert description.ready and len(description.padding) == 1000
    assert (model.name, model.precisions_available, model.context_length) == ("tiny", (4, 8), 512)
    assert {"json_schema", "tools", "min_p", "penalties", "top_logprobs"} <= set(model.capabilities)
    status = await running.status()
    assert (status.state, status.slots, status.pid) == ("ready", 2, running.process.pid)
    assert status.weight_digest == model.weight_digest
    assert (status.kv_tokens, status.kv_tokens_used) == (2 * 512, 0)


async def test_an_answer_keeps_to_its_schema_and_reports_what_the_model_thought(running: Engine) -> None:
    form = ResponseFormat("json_schema", '{"enum": ["yes", "no"]}')
    answer = await running.answer(ask(response_format=form, return_logprobs=True, top_logprobs=3))
    assert answer.text in ('"yes"', '"no"')
    assert answer.final.finish_reason == "stop"
    assert b"".join(spelled for delta in answer.deltas for spelled in delta.token_bytes) == answer.text.encode()
    first = next(delta for delta in answer.deltas if delta.token_ids)
    (likeliest,) = first.top_logprobs
    assert [other.logprob for other in likeliest] == sorted((other.logprob for other in likeliest), reverse=True)
    assert len(likeliest) == 3
    assert first.logprobs[0] <= likeliest[0].logprob, "of all tokens, not of the allowed ones"
    assert answer.final.signals is None


async def test_continuations_are_scored_as_the_model_writes_them(running: Engine) -> None:
    written = await running.answer(ask(tokens=12, return_logprobs=True))
    ids = tuple(token for delta in written.deltas for token in delta.token_ids)
    texts = ("yes", "no idea", "no", "The answer is the city.")
    request = ScoreRequest(messages=(Message("user", "Where is my parcel?"),), continuations=texts)
    answer = await running.inference.score(request, call())
    assert (answer.precision, answer.release) == (8, written.final.release)
    assert answer.prompt_tokens == written.final.usage.prompt_tokens
    assert [len(one.token_ids) for one in answer.scored] == [len(one.logprobs) for one in answer.scored]
    best = max(math.fsum(one.logprobs) for one in answer.scored)
    first = next(delta for delta in written.deltas if delta.token_ids)
    assert all(one.logprobs[0] <= first.logprobs[0] + 1e-3 or one.token_ids[0] == ids[0] for one in answer.scored)
    assert best < 0
    chosen = await running.answer(ask(response_format=ResponseFormat("choice", choices=texts), return_signals=True))
    assert chosen.text in texts
    assert chosen.final.finish_reason == "stop"
    assert chosen.final.signals is not None
    assert (chosen.final.signals.tokens, chosen.final.usage.completion_tokens) == (
        1,
        len(answer.scored[texts.index(chosen.text)].token_ids),
    )
    likely = [one for one, text in zip(answer.scored, texts, strict=True) if text != "no"]
    assert chosen.text == "no" or math.fsum(answer.scored[texts.index(chosen.text)].logprobs) == max(
        math.fsum(one.logprobs) for one in likely
    )


async def test_a_prompt_that_was_here_before_gives_the_same_answer_from_kept_prefixes(running: Engine) -> None:
    request = ask("tell me of the weir and its water. " * 6, 24)
    cold, warm = await running.answer(request), await running.answer(request)
    assert cold.final.usage.prompt_tokens > 32
    assert warm.final.usage.cached_tokens >= cold.final.usage.prompt_tokens - 2 - 16
    assert warm.text == cold.text
    assert (await running.status()).prefix_hit_tokens >= warm.final.usage.cached_tokens


async def test_a_draining_engine_finishes_what_runs_and_takes_no_more(own: Engine) -> None:
    stream = own.inference.generate(ask(tokens=100), call())
    assert isinstance(await anext(stream), Committed)
    assert await own.control.drain(call()) == 1
    with pytest.raises(Unavailable, match="draining"):
        await own.answer(ask())
    assert [type(event).__name__ async for event in stream][-1] == "Final"
    assert (await own.status()).state == "draining"


async def test_a_killed_engine_ends_its_answers_as_unavailable(own: Engine) -> None:
    stream = own.inference.generate(ask(tokens=400), call())
    await anext(stream)
    own.process.kill()
    with pytest.raises(Unavailable):
        async for _ in stream:
            pass
    assert await own.exit_code() == -signal.SIGKILL


async def test_a_signal_ends_it_cleanly(own: Engine) -> None:
    own.process.terminate()
    assert await own.exit_code() == 0


def test_a_release_that_cannot_be_served_ends_the_process_with_its_own_code(tmp_path: Path) -> None:
    running = start(EngineConfig(socket=tmp_path / "e.sock", release_dir=tmp_path))
    try:
        assert running.wait(30) == UNUSABLE
    finally:
        running.kill()
