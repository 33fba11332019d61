"""Draws quantize.progress on a terminal: a bar per task, notes above the bars.

Where stderr is no terminal (a log, CI) a line marks a task's start and end, so that a log that is
read while it grows never looks hung.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Literal, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)
from rich.text import Text

Unit = Literal["bytes", "steps"]


class _Amount(ProgressColumn):
    """Bytes and speed for transfers, counts for steps, nothing where the total is unknown."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes, self._speed, self._steps = DownloadColumn(), TransferSpeedColumn(), MofNCompleteColumn()

    def render(self, task: Task) -> Text:
        if task.fields["unit"] == "bytes":
            return Text.assemble(self._bytes.render(task), " ", self._speed.render(task))
        return self._steps.render(task) if task.total is not None else Text("")


class Bars:
    """A quantize.progress.Progress for people; a context manager. Silent when `quiet`."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self._console, self._quiet = console, quiet
        self._live = console.is_terminal and not quiet
        self._tasks: dict[str, TaskID] = {}
        self._began: dict[str, float] = {}
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            _Amount(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not self._live,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def start(self, task: str, total: int | None, unit: Unit) -> None:
        self._began[task] = time.monotonic()
        self._tasks[task] = self._bars.add_task(task, total=total, unit=unit)
        if not self._live:
            self._print(f"{task} …")

    def advance(self, task: str, amount: int) -> None:
        if task in self._tasks:
            self._bars.advance(self._tasks[task], amount)

    def finish(self, task: str) -> None:
        known = self._tasks.pop(task, None)
        if known is not None:
            self._bars.remove_task(known)
            self._print(f"{task}: done in {time.monotonic() - self._began.pop(task):.1f} s")

    def note(self, text: str) -> None:
        self._print(text)

    def _print(self, text: str) -> None:
        if not self._quiet:
            self._console.print(Text(text, style="dim"), soft_wrap=True)
