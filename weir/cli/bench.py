"""`weir bench …`: measurements that anyone can repeat; each prints one JSON object with the keys its page names.

Data sets come from `--data` or `WEIR_DATA`: set but missing is an error, unset is said visibly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from weir.cli import report
from weir.cli.bench_edge import edge
from weir.cli.bench_switching import switching
from weir.cli.bench_transfer import transfer
from weir.cli.extras import require

Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")]
Data = Annotated[Path | None, typer.Option("--data", help="Folder of the data sets; default: WEIR_DATA.")]

bench = typer.Typer(name="bench", no_args_is_help=True, help="Measurements of this machine and these models.")
bench.command("edge")(edge)
bench.command("transfer")(transfer)
bench.command("switching")(switching)


@bench.command("quality")
def quality(
    model: Annotated[str, typer.Option(help="smollm2, qwen, minilm, or any source that can be built.")] = "smollm2",
    rotated: Annotated[
        bool, typer.Option("--rotated", help="Take the weights off the source's grid; the function stays.")
    ] = False,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Compare nested 8- and 4-bit weights with plain rounding, against the float32 source."""
    require("quantize", "weir bench quality")
    from bench.data_sets import data_folder
    from bench.quality.run import run
    from edge.config import available_cpus
    from weir.cli.progress import Bars

    with Bars(report.err(), quiet=as_json) as progress:
        found = run(model, data_folder(data), rotated=rotated, threads=available_cpus(), progress=progress)
    if as_json:
        report.emit(found)
    else:
        _draw(found)


def _draw(found: dict[str, Any]) -> None:
    from rich.table import Table

    measure = "perplexity" if "perplexity" in found else "accuracy"
    table = Table("", "KL, nats", "top-1", measure, box=None)
    table.add_row("float32", "", "", f"{found[measure]['float32']:.3f}")
    for name, value in found["kl"].items():
        table.add_row(name, f"{value:.4f}", f"{found['top1'][name]:.3f}", f"{found[measure][name]:.3f}")
    report.out().print(table)
    sizes = ", ".join(f"{name} {count / 1e6:.1f} MB" for name, count in found["bytes"].items())
    report.out().print(f"{sizes}; {found['positions']} positions of {found['data']}", markup=False, soft_wrap=True)
