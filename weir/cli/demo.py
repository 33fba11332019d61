"""`weir demo`: the whole cascade at work on this machine, in four acts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weir.cli import report
from weir.cli.extras import require


def demo(
    full: Annotated[bool, typer.Option("--full", help="0.5B on the edge, 1.5B in the cloud.")] = False,
    picture: Annotated[Path | None, typer.Option(help="Where the latency picture goes; default: the cache.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout; the show on stderr.")] = False,
) -> None:
    """Real models, real processes, a link that breaks: see where answers come from and why."""
    for extra in ("edge", "cloud", "quantize", "bench"):
        require(extra, "weir demo")
    from weir.demo.run import run

    outcome = run(full=full, picture=picture, quiet=as_json)
    if as_json:
        report.emit(outcome.figures)
    raise typer.Exit(report.DONE if outcome.good else report.FAILED)
