"""Draws the demo's latencies, request by request, with the acts behind them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from weir.demo.record import Record
from weir.demo.summary import BACK, CASCADE, CLOUD_ONLY, CUT, NARROW

_ACTS = ((CASCADE, "cascade"), (NARROW, "narrow link"), (CUT, "ranks killed"), (BACK, "ranks back"))
_KINDS = (
    ("edge, 4-bit", "o", "#2a9d57"),
    ("edge, 8-bit", "s", "#0b5d3b"),
    ("edge, degraded", "D", "#e0a100"),
    ("cloud (escalated)", "^", "#1f77b4"),
    ("failed", "x", "#c0392b"),
)


def draw(records: Sequence[Record], path: Path) -> None:
    """Writes a PNG of every request's latency to `path`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    figure, axes = pyplot.subplots(figsize=(11, 5), dpi=120)
    try:
        shown = _lay_out(axes, records)
        _alone(axes, records)
        axes.set_yscale("log")
        for axis in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            axis(ticker.FuncFormatter(lambda value, _: f"{value:.0f}"))
        axes.set_xlim(-1, shown)
        axes.set_xlabel("request")
        axes.set_ylabel("latency seen by the client, ms (log)")
        axes.grid(axis="y", which="both", color="#e6e6e6", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=6, frameon=False, fontsize=8)
        figure.tight_layout()
        figure.savefig(path)
    finally:
        pyplot.close(figure)


def _lay_out(axes: object, records: Sequence[Record]) -> int:
    """The acts side by side; returns how many requests stand in the picture."""
    at, drawn = 0, set()
    for index, (act, title) in enumerate(_ACTS):
        group = [record for record in records if record.act == act]
        if not group:
            continue
        if index % 2:
            axes.axvspan(at - 0.5, at + len(group) - 0.5, color="#f4f4f4", zorder=0)  # type: ignore[attr-defined]
        axes.text(  # type: ignore[attr-defined]
            at + (len(group) - 1) / 2, 1.01, title, transform=axes.get_xaxis_transform(),  # type: ignore[attr-defined]
            ha="center", va="bottom", fontsize=9,
        )  # fmt: skip
        for offset, record in enumerate(group):
            label, marker, colour = _kind(record)
            axes.plot(  # type: ignore[attr-defined]
                at + offset, max(record.ms, 1.0), marker, color=colour, markersize=6, linestyle="none",
                label=None if label in drawn else label,
            )  # fmt: skip
            drawn.add(label)
        at += len(group)
    return at


def _alone(axes: object, records: Sequence[Record]) -> None:
    """The same questions asked of the cloud alone, under the cascade's own."""
    alone = {record.question: record.ms for record in records if record.act == CLOUD_ONLY and not record.failed}
    asked = [record.question for record in records if record.act == CASCADE]
    points = [(at, alone[question]) for at, question in enumerate(asked) if question in alone]
    if points:
        axes.plot(  # type: ignore[attr-defined]
            [at for at, _ in points], [ms for _, ms in points], "_", color="#888888", markersize=9,
            markeredgewidth=2, label="cloud alone, same question",
        )  # fmt: skip


def _kind(record: Record) -> tuple[str, str, str]:
    if record.failed:
        return _KINDS[4]
    if record.degraded:
        return _KINDS[2]
    if record.tier == "cloud":
        return _KINDS[3]
    return _KINDS[0] if record.precision == 4 else _KINDS[1]
