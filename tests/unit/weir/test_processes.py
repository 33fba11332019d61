"""The demo's processes: started by the real command line, stopped, and proven gone."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

from weir.demo.errors import DemoError
from weir.demo.processes import Troupe, free_address


async def test_a_process_that_ends_early_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    async def never() -> bool:
        return False

    with pytest.raises(DemoError, match=r"edge ended with 2.*\n.*releases_dir"):
        async with Troupe(tmp_path) as troupe:
            await troupe.start("edge", "edge", "serve")
            await troupe.until("starting", never, 30.0)


async def test_waiting_is_bounded(tmp_path: Path) -> None:
    async def never() -> bool:
        return False

    with pytest.raises(DemoError, match="starting took more than"):
        async with Troupe(tmp_path) as troupe:
            await troupe.until("starting", never, 0.3)


async def test_an_interrupted_troupe_leaves_no_process(tmp_path: Path) -> None:
    pids: list[int] = []

    async def play() -> None:
        async with Troupe(tmp_path) as troupe:
            gateway = free_address()
            actor = await troupe.start(
                "gateway", "cloud", "serve", "--address", gateway, "--http-address", free_address()
            )
            pids.append(actor.process.pid)
            await asyncio.sleep(60)

    task = asyncio.create_task(play())
    while not pids:
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not psutil.pid_exists(pids[0])


async def test_a_process_that_does_not_listen_to_a_request_to_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.demo.processes.STOP_GRACE_S", 0.5)
    async with Troupe(tmp_path) as troupe:
        actor = await troupe.start("edge", "ask", "x", "--node", "127.0.0.1:9")
        os.kill(actor.process.pid, signal.SIGSTOP)  # it cannot answer SIGTERM
        troupe.note_descendants()
    assert troupe.left_over() == []
