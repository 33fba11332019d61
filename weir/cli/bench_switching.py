"""`weir bench switching`: what clients notice when a node changes its precision or its release."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from weir.cli import report
from weir.cli.extras import require
from weir.cli.models import Json


def switching(
    release: Annotated[Path | None, typer.Option(help="Nested release to serve; default: SmolLM2, built once.")] = None,
    seconds: Annotated[float, typer.Option(min=2, max=600, help="How long each of the five phases lasts.")] = 45.0,
    per_minute: Annotated[float, typer.Option(min=1, max=60_000, help="Requests a minute.")] = 200.0,
    slots: Annotated[int, typer.Option(min=1, max=64, help="The engine's slots.")] = 4,
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="The engine's; default: all cores.")] = None,
    seed: Annotated[int, typer.Option(help="For arrivals and prompts.")] = 0,
    as_json: Json = False,
) -> None:
    """Requests at a steady pace through an upgrade, a change of release and a downgrade, in both ways to do it."""
    require("edge", "weir bench switching")
    from bench.switching.run import Plan, measure
    from weir.cli.progress import Bars

    if release is None:
        require("quantize", "weir bench switching", "onnxruntime_genai")
        from bench.transfer.subject import default_release

        with Bars(report.err(), quiet=as_json) as progress:
            release = default_release(progress)
    elif not release.is_dir():
        raise report.BadUse(f"{release} is no release folder")
    chosen = {} if threads is None else {"threads": threads}
    plan = Plan(release, seconds=seconds, per_minute=per_minute, slots=slots, seed=seed, **chosen)
    told = (lambda _what: None) if as_json else (lambda what: report.err().print(what, style="dim"))
    found = measure(plan, told)
    if as_json:
        report.emit(found)
    else:
        _draw(found)


def _draw(found: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table("", "phase", "sent", "failed", "p50 ms", "p99 ms", "requests waited ms", box=None)
    for way, result in found["ways"].items():
        for name, phase in result["phases"].items():
            figures = [phase["sent"], phase["failed"], phase["p50_ms"], phase["p99_ms"], phase.get("pause_ms", "")]
            table.add_row(way.replace("_", " "), name.replace("_", " "), *map(str, figures))
    report.out().print(table)
    for way, result in found["ways"].items():
        for name, why in result["refused"].items():
            report.out().print(f"{way}: {name} was refused: {why}", markup=False, soft_wrap=True)
    report.out().print(
        f"{found['failed']} failed; p99 of the worst change {found['p99_ratio']} times that of the better steady phase "
        f"({found['p99_ratio_same_weights']} times that of the same weights); with a short queue "
        f"{found['p99_ratio_short_queue']} ({found['p99_ratio_short_queue_same_weights']})",
        soft_wrap=True,
    )
