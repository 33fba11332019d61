"""Other weights in a real engine process: within a memory budget, tried out before they serve, without a leak."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from edge.engine.config import EngineConfig
from edge.engine.endings import UNUSABLE
from release.folder import open_release
from release.listing import read_manifest
from release.manifest import MANIFEST_NAME, SelfTest, write
from runtime.cpu import cpu_class
from runtime.ort.footprint import load_bytes
from runtime.ort.generate import prefill
from runtime.ort.load import load_model
from tests.integration.engine_process import Engine, ask, call, engine, start
from tests.integration.short_of_memory import MODULE
from wire.errors import DeadlineExceeded, Overloaded, PreconditionFailed

MIB = 1 << 20
SETTINGS = {"slots": 2, "max_queue": 16, "context_length": 512, "max_output_tokens": 400}
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)
# What an engine process takes beside weights (libraries, tokenizer, server), what 4-bit weights take, and what a
# second session lacks.
OWN, FOUR = 150 * MIB, 180 * MIB
SHORT_BY = 20 * MIB


def resident(e: Engine) -> int:
    return int(psutil.Process(e.process.pid).memory_info().rss)


def peak(e: Engine) -> int:
    """The most the process ever took."""
    lines = Path(f"/proc/{e.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


@asynccontextmanager
async def loaded(e: Engine, clients: int = 4) -> AsyncIterator[list[tuple[str, int]]]:
    """Asks without a pause meanwhile; gives what answered. A request that fails fails the test."""
    done, seen = asyncio.Event(), list[tuple[str, int]]()

    async def ask_on() -> None:
        while not done.is_set():
            final = (await e.answer(ask(tokens=24))).final
            seen.append((final.release, final.precision))

    load = [asyncio.create_task(ask_on()) for _ in range(clients)]
    try:
        yield seen
    finally:
        done.set()
        await asyncio.gather(*load)


def variant(
    source: Path, folder: Path, version: str, change: Callable[[SelfTest], SelfTest] = lambda test: test
) -> str:
    """The same weights as another release, with self-tests; `change` may falsify them. Returns its id."""
    folder.mkdir()
    for file in source.iterdir():
        if file.name != MANIFEST_NAME:
            (folder / file.name).symlink_to(file)
    release = open_release(source)
    manifest = dataclasses.replace(
        release.manifest, version=version, self_tests=tuple(change(recorded(source, bits)) for bits in (4, 8))
    )
    (folder / MANIFEST_NAME).write_text(write(manifest))
    return read_manifest(folder).id


def recorded(source: Path, bits: int) -> SelfTest:
    logits = prefill(load_model(open_release(source), bits, capacity=64).steps, 0, PROMPT)
    likeliest = tuple(int(token) for token in logits.argsort()[::-1][:5])
    values = tuple(float(logits[token]) for token in likeliest)
    return SelfTest(bits, PROMPT, likeliest, values, cpu_class(), 1e-3, 0.5)


def falsified(test: SelfTest) -> SelfTest:
    return dataclasses.replace(test, logits=tuple(value + 0.25 for value in test.logits))


async def test_within_a_budget_weights_change_with_a_short_queue_and_nobody_fails(
    tiny_release: Path, tmp_path: Path
) -> None:
    second = variant(tiny_release, tmp_path / "second", "2.0.0")
    async with engine(tiny_release, MODULE, **SETTINGS) as e, loaded(e) as seen:
        first = (await e.status()).release
        for directory, bits in (("", 4), ("", 8), (str(tmp_path / "second"), 8), ("", 4), (str(tiny_release), 8)):
            await asyncio.sleep(0.2)
            done = await e.control.activate(directory, bits, call())
            assert done.pause_ms > 0
            assert "short queue" in done.note
            assert (await e.answer(ask())).final.weight_digest == done.weight_digest
        await asyncio.sleep(0.1)
    assert set(seen) == {(first, 8), (first, 4), (second, 8), (second, 4)}


async def test_twenty_changes_leave_the_memory_as_it_was(tiny_release: Path) -> None:
    for module in ("edge.engine", MODULE):
        async with engine(tiny_release, module, **SETTINGS) as e:
            taken = []
            for turn in range(20):
                done = await e.control.activate("", 4 if turn % 2 == 0 else 8, call())
                assert (done.pause_ms > 0) is (module == MODULE)
                await e.answer(ask())
                await asyncio.sleep(0.05)  # what was let go is given back in its own thread
                taken.append(resident(e))
            assert max(taken[10:]) - max(taken[:4]) < 8 * MIB, [bytes_ >> 20 for bytes_ in taken]


@pytest.mark.parametrize("short_of_memory", [False, True])
async def test_weights_that_fail_their_self_test_leave_the_old_ones_serving(
    tiny_release: Path, tmp_path: Path, short_of_memory: bool
) -> None:
    variant(tiny_release, tmp_path / "wrong", "2.0.0", falsified)
    async with engine(tiny_release, MODULE if short_of_memory else "edge.engine", **SETTINGS) as e:
        async with loaded(e) as seen:
            for bits in (8, 4):
                with pytest.raises(
                    PreconditionFailed, match=r"failed their self-test: token \d+.*0\.25.* apart.*fetch"
                ) as e_:
                    await e.control.activate(str(tmp_path / "wrong"), bits, call())
                assert ("old ones serve again" in e_.value.message) is short_of_memory
        status = await e.status()
        assert (status.state, status.precision) == ("ready", 8)
        assert set(seen) == {(status.release, 8)}


def test_weights_that_fail_their_self_test_end_a_process_that_starts_with_them(
    tiny_release: Path, tmp_path: Path
) -> None:
    variant(tiny_release, tmp_path / "wrong", "2.0.0", falsified)
    running = start(EngineConfig(socket=tmp_path / "e.sock", release_dir=tmp_path / "wrong"))
    try:
        assert running.wait(30) == UNUSABLE
    finally:
        running.kill()


async def test_what_fits_no_budget_is_refused_and_nobody_waits(tiny_release: Path) -> None:
    async with engine(tiny_release, memory_budget_bytes=40 * MIB, **SETTINGS) as e:
        with pytest.raises(Overloaded, match=r"even without the running ones.*memory_budget_bytes"):
            await e.control.activate("", 4, call())
        assert (await e.answer(ask())).final.precision == 8


async def test_a_deadline_too_near_to_outlast_the_change_is_told_at_once(tiny_release: Path) -> None:
    async with engine(tiny_release, MODULE, **SETTINGS) as e:
        await e.answer(ask(tokens=40))
        long = [asyncio.create_task(e.answer(ask(tokens=400))) for _ in range(2)]
        await _until(lambda: _active(e, 2))
        change = asyncio.create_task(e.control.activate("", 4, call()))
        await _until(lambda: _changing(e))
        waiting = asyncio.create_task(e.answer(ask()))
        began = time.monotonic()
        with pytest.raises((Overloaded, DeadlineExceeded)):
            await e.answer(ask(), seconds=0.02)
        assert time.monotonic() - began < 1
        assert {(await answer).final.precision for answer in long} == {8}
        assert (await change).pause_ms > 0
        assert (await waiting).final.precision == 4


async def _active(e: Engine, count: int) -> bool:
    return (await e.status()).active == count


async def _changing(e: Engine) -> bool:
    return "being changed" in (await e.status()).detail


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    end = time.monotonic() + 5
    while not await condition():
        assert time.monotonic() < end, "it never came about"
        await asyncio.sleep(0.001)


@pytest.mark.real_model
async def test_real_weights_change_within_a_real_budget(smollm2_release: Path) -> None:
    settings = {"slots": 2, "max_queue": 16, "context_length": 512}
    manifest = read_manifest(smollm2_release)
    eight = load_bytes(manifest, 8, slots=2, prefill_chunk=128)
    async with engine(smollm2_release, precision=4, **settings) as e:
        await e.answer(ask(), 60)
        budget = resident(e) + eight - SHORT_BY
        await e.control.activate("", 8, call(60))
        assert 0.6 * eight < peak(e) - OWN < eight + FOUR, "an estimate is to be a little too high, not too low"
    async with engine(smollm2_release, precision=4, memory_budget_bytes=budget, **settings) as e, loaded(e, 2) as seen:
        for bits in (8, 4, 8, 4):
            done = await e.control.activate("", bits, call(60))
            assert (done.pause_ms > 0) is (bits == 8), "beside 8-bit weights there is room for 4-bit ones"
            assert peak(e) < budget
    assert {bits for _, bits in seen} == {4, 8}
