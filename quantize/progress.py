"""How long work tells what it is doing: one Protocol, drawn by whoever shows it.

Builders and downloads call these four; the CLI draws bars, tests collect calls. Calls come from one
thread at a time. A task may report fewer or more steps than its total: a total is an estimate.
"""

from __future__ import annotations

from typing import Literal, Protocol

Unit = Literal["bytes", "steps"]


class Progress(Protocol):
    """Told of tasks by name; a name is unique while its task runs."""

    def start(self, task: str, total: int | None, unit: Unit) -> None:
        """`task` begins; `total` is None where nobody knows how much there is."""

    def advance(self, task: str, amount: int) -> None:
        """`amount` more of `task` is done; less, where something had to begin anew."""

    def finish(self, task: str) -> None:
        """`task` is done."""

    def note(self, text: str) -> None:
        """One line a user should see, such as where bytes come from."""


class Silent:
    """For callers that show nothing."""

    def start(self, task: str, total: int | None, unit: Unit) -> None:
        pass

    def advance(self, task: str, amount: int) -> None:
        pass

    def finish(self, task: str) -> None:
        pass

    def note(self, text: str) -> None:
        pass
