"""Draws when nodes could answer: recorded links in virtual time, and the ones that were really gone through."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.transfer.simulate import Arrival, Way

_KINDS = (
    (Way.NESTED, "nested, 4-bit first", "#2a9d57"),
    (Way.SEPARATE, "separate 4-bit, then 8-bit", "#e0a100"),
    (Way.EIGHT_ONLY, "8-bit alone", "#1f77b4"),
)


def draw(virtual: Sequence[Arrival], real: Sequence[Arrival], path: Path) -> None:
    """Writes a PNG to `path`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.5), dpi=120, sharey=True)
    try:
        for axis, figure_of, title in (
            (axes[0], "first_answer_s", "first answer by the node itself"),
            (axes[1], "eight_s", "8-bit in force"),
        ):
            for way, label, colour in reversed(_KINDS):  # nested over separate, whose first answer is the same
                _curve(axis, [getattr(one, figure_of) for one in virtual if one.way is way], label, colour, "-")
                _curve(axis, [getattr(one, figure_of) for one in real if one.way is way], f"{label}, real", colour, ":")
            axis.set_title(title, fontsize=10)
            axis.set_xlabel("seconds since the start, empty store")
            axis.set_xlim(left=0)
            axis.grid(color="#e6e6e6", linewidth=0.6)
        axes[0].set_ylabel("share of links")
        axes[0].legend(loc="lower right", fontsize=7, frameon=False)
        figure.tight_layout()
        figure.savefig(path)
    finally:
        pyplot.close(figure)


def _curve(axis: object, seconds: Sequence[float], label: str, colour: str, style: str) -> None:
    ordered = sorted(seconds)
    if ordered:
        shares = [(rank + 1) / len(ordered) for rank in range(len(ordered))]
        axis.step(ordered, shares, where="post", color=colour, linestyle=style, label=label)  # type: ignore[attr-defined]
