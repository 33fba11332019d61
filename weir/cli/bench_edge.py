"""`weir bench edge`: the engine against onnxruntime-genai and llama.cpp, and the node against its own engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from weir.cli import report
from weir.cli.extras import require
from weir.cli.models import Json


def edge(
    release: Annotated[
        Path | None, typer.Option(help="Nested release to measure; default: SmolLM2, built once.")
    ] = None,
    source: Annotated[
        str, typer.Option(help="The release's source, for genai; with the default release: SmolLM2.")
    ] = "",
    gguf: Annotated[Path | None, typer.Option(help="The same model at 4 bits, for llama.cpp.")] = None,
    peers: Annotated[
        str,
        typer.Option(
            help="A Python to run the peers, 'none', or empty: llama.cpp compiled once; genai's model is built here."
        ),
    ] = "",
    only: Annotated[str, typer.Option(help="Parts to measure, with commas; default: all.")] = "",
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Interleaved rounds; medians are over them.")] = 5,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="Of every side.")] = 1,
    soak: Annotated[float, typer.Option(min=0, max=86_400, help="Then 64 clients for so many seconds.")] = 0.0,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG here.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few tokens: does it work at all?")] = False,
    seed: Annotated[int, typer.Option(help="For prompts, arrivals and who vanishes.")] = 0,
    as_json: Json = False,
) -> None:
    """Decode, prefill and batches against the peers; overhead, long prompts, prefixes and first tokens of a node."""
    for extra in ("edge", "quantize", "bench"):
        require(extra, "weir bench edge", "openai", "onnxruntime_genai")
    from bench.edge.plan import PARTS, QUICK, Plan
    from bench.edge.run import measure
    from bench.transfer.subject import MODEL, default_release
    from weir.cli.progress import Bars

    parts = tuple(part.strip() for part in only.split(",") if part.strip()) or PARTS
    if unknown := [part for part in parts if part not in PARTS]:
        raise report.BadUse(f"--only names {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if release is not None and not release.is_dir():
        raise report.BadUse(f"{release} is no release folder")
    if gguf is not None and not gguf.is_file():
        raise report.BadUse(f"{gguf} is no file")
    chosen: dict[str, Any] = {**(QUICK if quick else {}), **({} if quick and rounds == 5 else {"rounds": rounds})}
    with Bars(report.err(), quiet=as_json) as progress:
        if release is None:
            source = source or MODEL
            release = default_release(progress)
        plan = Plan(
            release,
            source or None,
            None if gguf is None else str(gguf),
            peers if peers not in ("", "none") else None,
            only=parts,
            peers=() if peers == "none" else ("genai", "llamacpp"),
            threads=threads,
            seed=seed,
            soak_s=soak,
            **chosen,
        )
        found = measure(plan, progress, progress.note)
    if plot is not None:
        from bench.edge.plot import draw

        draw(found, plot)
    if as_json:
        report.emit(found)
    else:
        _draw(found)


def _draw(found: dict[str, Any]) -> None:
    from rich.table import Table

    if table := found.get("decode_tokens_per_s"):
        sizes = list(next(iter(table.values())))
        shown = Table("tokens a second, batch", *sizes, box=None)
        for name, by_batch in table.items():
            shown.add_row(name, *(f"{by_batch[size]:.1f}" if size in by_batch else "" for size in sizes))
        report.out().print(shown)
    for name, value in found.items():
        if name not in ("plan", "versions", "machine", "skipped", "decode_tokens_per_s") and value is not None:
            report.out().print(f"{name.replace('_', ' ')}: {value}", markup=False, soft_wrap=True)
    for what, why in found["skipped"].items():
        report.err().print(f"skipped {what}: {why}", style="dim", soft_wrap=True, markup=False)
