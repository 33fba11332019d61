"""`weir bench transfer`: how soon a node answers while its model is still on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from weir.cli import report
from weir.cli.extras import require
from weir.cli.models import Json


def transfer(
    data: Annotated[Path | None, typer.Option(help="Folder of the data sets; default: WEIR_DATA.")] = None,
    release: Annotated[Path | None, typer.Option(help="Nested release to carry; default: SmolLM2, built once.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG here.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Two links and a few kills: does it work at all?")] = False,
    traces: Annotated[int, typer.Option(min=1, max=80, help="Recorded links to really go through.")] = 12,
    factor: Annotated[float, typer.Option(min=0.01, max=10_000, help="Links are this much faster.")] = 20.0,
    seed: Annotated[int, typer.Option(help="For the choice of links, the kills and the load.")] = 0,
    as_json: Json = False,
) -> None:
    """Nested weights against separate ones and 8-bit alone, on recorded links; kills; answers meanwhile."""
    for extra in ("edge", "quantize", "bench"):
        require(extra, "weir bench transfer", "openai", "onnxruntime_genai")
    from bench.data_sets import data_folder
    from bench.transfer.run import QUICK, Plan, measure
    from bench.transfer.subject import default_release
    from weir.cli.progress import Bars

    folder = data_folder(data)
    if folder is None:
        reason = "the recorded links are not here: give the data sets' folder with --data or WEIR_DATA"
        report.err().print(f"skipped: {reason}", soft_wrap=True, markup=False)
        if as_json:
            report.emit({"skipped": reason})
        return
    if not folder.is_dir():
        raise report.BadUse(f"{folder}, the data sets' folder, does not exist (--data or WEIR_DATA)")
    with Bars(report.err(), quiet=as_json) as progress:
        chosen: dict[str, Any] = {"traces": traces, **(QUICK if quick else {})}
        plan = Plan(release or default_release(progress), folder, factor=factor, seed=seed, **chosen)
        outcome = measure(plan, progress)
    if plot is not None:
        from bench.transfer.plot import draw

        draw(outcome.virtual, outcome.real, plot)
    if as_json:
        report.emit(outcome.figures)
        return
    for line in _sentences(outcome.figures):
        report.out().print(line, soft_wrap=True, markup=False)


def _sentences(figures: dict[str, Any]) -> list[str]:
    virtual, load = figures["virtual"], figures["load"]
    return [
        f"first answer by the node itself: {figures['first_answer_ratio']:.2f} of the time that 8-bit alone takes "
        f"(median of {len(figures['real']['traces'])} real links; {virtual['nested_first_answer_ratio']:.2f} over all "
        f"{virtual['traces']} in virtual time, bytes alone)",
        f"bytes in all: {figures['bytes_ratio']:.3f} of 8-bit alone; separate releases "
        f"{virtual['separate_bytes_ratio']:.2f}",
        f"{figures['kills']} kills: at most {figures['refetched_chunks_max']} chunks fetched again",
        f"{sum(phase['sent'] for phase in load['phases'].values())} requests through downloads and changes: "
        f"{figures['failed']} failed, p99 {figures['p99_ratio']:.2f} times the steady one",
    ]
