"""Draws tokens a second by batch size, and what a request costs through the node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_COLOURS = {"weir": "#2a9d57", "genai": "#1f77b4", "genai_symmetric": "#8fbbd9", "llamacpp": "#e0a100"}
_NAMES = {
    "weir": "Weir",
    "genai": "onnxruntime-genai",
    "genai_symmetric": "onnxruntime-genai, no zero points",
    "llamacpp": "llama.cpp",
}


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Writes a PNG to `path`; what was not measured is left out."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.2), dpi=120)
    try:
        _batches(axes[0], found.get("decode_tokens_per_s") or {})
        _requests(axes[1], found.get("request_ms") or {}, found.get("prefill_ms") or {})
        figure.tight_layout()
        figure.savefig(path)
    finally:
        pyplot.close(figure)


def _batches(axis: Any, table: Mapping[str, Mapping[str, float]]) -> None:
    for name, by_batch in table.items():
        sizes = sorted(int(size) for size in by_batch)
        rates = [by_batch[str(size)] for size in sizes]
        axis.plot(sizes, rates, marker="o", color=_COLOURS[name], label=_NAMES[name])
    axis.set_title("decode, 4-bit weights", fontsize=10)
    axis.set_xlabel("sequences at once")
    axis.set_ylabel("tokens a second")
    axis.set_ylim(bottom=0)
    axis.grid(color="#e6e6e6", linewidth=0.6)
    if table:
        axis.legend(frameon=False, fontsize=8)


def _requests(axis: Any, request_ms: Mapping[str, float], prefill_ms: Mapping[str, float]) -> None:
    bars = [(f"prefill\n{_NAMES[name]}", value, _COLOURS[name]) for name, value in prefill_ms.items()]
    kinds = {"bare": "request\nbare engine", "grpc": "request\ngRPC", "http": "request\nHTTP"}
    bars += [(kinds[name], value, "#888888") for name, value in request_ms.items()]
    for place, (_, value, colour) in enumerate(bars):
        axis.bar(place, value, color=colour, width=0.7)
        axis.text(place, value, f"{value:.0f}", ha="center", va="bottom", fontsize=7)
    axis.set_xticks(range(len(bars)), [label for label, _, _ in bars], fontsize=7)
    axis.set_title("milliseconds, one client", fontsize=10)
