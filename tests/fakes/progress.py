"""Remembers what it was told."""

from __future__ import annotations

from dataclasses import dataclass, field

from quantize.progress import Unit


@dataclass(slots=True)
class Recorder:
    totals: dict[str, int | None] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def start(self, task: str, total: int | None, unit: Unit) -> None:
        self.totals[task] = total
        self.done[task] = 0

    def advance(self, task: str, amount: int) -> None:
        self.done[task] += amount

    def finish(self, task: str) -> None:
        self.finished.append(task)

    def note(self, text: str) -> None:
        self.notes.append(text)
