"""An updater that breaks takes nothing along: it is told and begun anew."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from edge.front import updating
from edge.front.updating import Updating
from edge.updater.loop import Updater


class Breaking:
    """Breaks twice, then runs."""

    def __init__(self) -> None:
        self.begun, self.runs = 0, asyncio.Event()

    async def run(self) -> None:
        self.begun += 1
        if self.begun < 3:
            raise ExceptionGroup("a loop broke", [KeyError("what nobody thought of")])
        self.runs.set()
        await asyncio.Event().wait()


async def test_an_updater_that_breaks_is_begun_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(updating, "_ANEW_S", 0.0)
    breaking = Breaking()
    running = asyncio.create_task(Updating(cast(Updater, breaking)).run())
    async with asyncio.timeout(5):
        await breaking.runs.wait()
    assert "what nobody thought of" in caplog.text
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
