"""The four pictures of a quality report, as PNG files. Draws without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quantize.evaluation import Evaluation
from quantize.weight_errors import WeightError, by_layer
from release.manifest import BASE, PLANE_HI, PLANE_LO, Manifest

KL_PICTURE, TOP1_PICTURE, ERROR_PICTURE, SIZE_PICTURE = "kl.png", "top1.png", "weight-error.png", "sizes.png"
_COLOURS: Mapping[int, str] = {4: "#c0563b", 8: "#2f6f8f"}
_PARTS = ((BASE, "#8a8a8a", "shared"), (PLANE_HI, "#c0563b", "4-bit plane"), (PLANE_LO, "#2f6f8f", "residual"))
_LEAST_KL = 1e-6  # positions below it count as it: a logarithm needs a floor


def draw(folder: Path, manifest: Manifest, evaluation: Evaluation, errors: Sequence[WeightError]) -> tuple[str, ...]:
    """Draws into `folder`; returns the names of the pictures there are data for."""
    made = []
    for name, fill in (
        (KL_PICTURE, lambda axes: _divergences(axes, evaluation)),
        (TOP1_PICTURE, lambda axes: _agreement(axes, evaluation)),
        (ERROR_PICTURE, lambda axes: _weight_errors(axes, errors)),
        (SIZE_PICTURE, lambda axes: _sizes(axes, manifest)),
    ):
        if name == ERROR_PICTURE and not by_layer(errors):
            continue
        _picture(folder / name, fill)
        made.append(name)
    return tuple(made)


def _picture(path: Path, fill: Any) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    fill(axes)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=120)


def _divergences(axes: Any, evaluation: Evaluation) -> None:
    edges = np.logspace(np.log10(_LEAST_KL), 1, 60)
    for bits, width in evaluation.widths.items():
        values = np.maximum(width.kl_by_position, _LEAST_KL)
        axes.hist(values, edges, histtype="step", color=_COLOURS[bits], label=f"{bits} bits, mean {width.kl:.4f}")
        axes.axvline(max(width.kl, _LEAST_KL), color=_COLOURS[bits], linestyle=":")
    axes.set_xscale("log")
    axes.set_xlabel("KL divergence from the float32 source at one position, nats (dotted: the mean)")
    axes.set_ylabel("positions")
    axes.legend(frameon=False)


def _agreement(axes: Any, evaluation: Evaluation) -> None:
    widths = list(evaluation.widths.items())
    bars = axes.barh(
        [f"{bits} bits" for bits, _ in widths],
        [width.top1 for _, width in widths],
        color=[_COLOURS[bits] for bits, _ in widths],
    )
    axes.bar_label(bars, fmt="%.3f", padding=3)
    axes.set_xlim(0, 1.1)
    axes.set_xlabel(f"share of {evaluation.items} positions with the source's likeliest answer")


def _weight_errors(axes: Any, errors: Sequence[WeightError]) -> None:
    layers = by_layer(errors)
    for index, bits in enumerate((4, 8)):
        axes.plot(list(layers), [pair[index] for pair in layers.values()], "o-", color=_COLOURS[bits],
                  label=f"{bits} bits", markersize=3)  # fmt: skip
    axes.set_yscale("log")
    axes.set_xlabel("layer")
    axes.set_ylabel("relative weight error (RMS)")
    axes.legend(frameon=False)


def _sizes(axes: Any, manifest: Manifest) -> None:
    sizes = {entry.name: entry.bytes / 1e6 for entry in manifest.files}
    rows = {"8 bits": (BASE, PLANE_HI, PLANE_LO), "4 bits": (BASE, PLANE_HI)}
    for label, parts in rows.items():
        start = 0.0
        for name, colour, called in _PARTS:
            if name not in parts or name not in sizes:
                continue
            axes.barh(label, sizes[name], left=start, color=colour, label=called if label == "8 bits" else None)
            start += sizes[name]
        axes.text(start, label, f" {start:.1f} MB", va="center")
    axes.set_xlabel("weights, MB")
    axes.margins(x=0.15)
    axes.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.18))
