"""How the demo looks: a headline per act, a table that grows a row with every answer.

Rows are printed as they come rather than redrawn, so that a terminal, a log and CI show the same.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from weir.demo.record import Record

_COLUMNS = (
    ("question", 46, "left"),
    ("answer", 26, "left"),
    ("tier", 6, "left"),
    ("bits", 4, "right"),
    ("conf.", 6, "right"),
    ("reason", 26, "left"),
    ("ms", 6, "right"),
)
_WIDTH = 136
_COLOURS = {"edge": "green", "cloud": "cyan"}


class Show:
    """Prints what happens to one console."""

    def __init__(self, console: Console) -> None:
        self.console = console

    @classmethod
    def on(cls, *, stderr: bool) -> Show:
        """A show on stdout, or on stderr where stdout is kept for JSON."""
        console = Console(stderr=stderr, highlight=False)
        if not console.is_terminal:
            console = Console(stderr=stderr, highlight=False, width=_WIDTH)
        return cls(console)

    def act(self, title: str, text: str = "") -> None:
        self.console.print()
        self.console.print(Text(title, style="bold"))
        if text:
            self.say(text)

    def say(self, text: str) -> None:
        self.console.print(Text(text, style="dim"), soft_wrap=True)

    def warn(self, text: str) -> None:
        self.console.print(Text(text, style="yellow"), soft_wrap=True)

    def router(self, text: str) -> None:
        """Something the router changed by itself."""
        self.console.print(Text.assemble(("router  ", "bold magenta"), (text, "magenta")), soft_wrap=True)

    def header(self) -> None:
        self._row([Text(name, style="dim") for name, _, _ in _COLUMNS])

    def record(self, record: Record) -> None:
        if record.failed:
            self._row([_cut(record.question, 46), Text(record.error, style="red"), "", "", "", "", f"{record.ms:.0f}"])
            return
        reason = record.reason
        if record.degraded:
            reason = f"degraded: {record.reason}"
        confidence = "" if record.confidence is None else f"{record.confidence:.2f}"
        self._row(
            [
                _cut(record.question, 46),
                _cut(record.answer, 26),
                Text(record.tier, style=_COLOURS.get(record.tier, "")),
                str(record.precision),
                confidence,
                Text(reason, style="yellow" if record.degraded else ""),
                f"{record.ms:.0f}",
            ]
        )

    def _row(self, cells: list[Text | str]) -> None:
        table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 1, 0, 0))
        for _, width, justify in _COLUMNS:
            table.add_column(width=width, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
        table.add_row(*cells)
        self.console.print(table)


def _cut(text: str, width: int) -> Text:
    flat = " ".join(text.split())
    return Text(flat if len(flat) <= width else f"{flat[: width - 1]}…")
