"""`weir pull` and `weir quantize`: models in, releases out."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from weir.cli import report
from weir.cli.extras import require

Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")]


def pull(
    source: Annotated[str, typer.Argument(help="Catalogue name, folder, GGUF file or hub id.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Fetch a model, check it, and convert it once into the cache."""
    require("quantize", "weir pull", "onnx", "onnxruntime", "onnxruntime_genai", "sklearn")
    from quantize.sources.resolve import resolve
    from weir.cli.progress import Bars

    with Bars(report.err(), quiet=as_json) as progress:
        found = resolve(source, progress)
    if as_json:
        report.emit(dataclasses.asdict(found))
        return
    report.out().print(str(found.folder), soft_wrap=True, markup=False)
    report.err().print(
        f"{found.name} · {found.licence} · from {found.origin} · SHA-256 {found.sha256}",
        style="dim", soft_wrap=True, markup=False,
    )  # fmt: skip


def quantize(
    source: Annotated[str, typer.Argument(help="Catalogue name, folder, GGUF file or hub id.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="Folder of the new release.", show_default=False)],
    name: Annotated[str | None, typer.Option(help="The release's name; default: the source's.")] = None,
    version: Annotated[str, typer.Option(help="Semantic version.")] = "1.0.0",
    cloud_reference: Annotated[
        str | None, typer.Option(help="Cloud model to be calibrated against: a name, folder or hub id.")
    ] = None,
    calibrate: Annotated[bool, typer.Option(help="Fit confidences; needs --cloud-reference.")] = True,
    items: Annotated[Path | None, typer.Option(help="JSONL of items to fit on; default: the demo's.")] = None,
    max_disagreement: Annotated[float, typer.Option(min=0.0, max=1.0, help="Risk the thresholds aim at.")] = 0.1,
    as_json: Json = False,
) -> None:
    """Build a release: nested 4- and 8-bit weights, and how far their answers can be trusted."""
    require("quantize", "weir quantize")
    if calibrate and cloud_reference is None:
        raise report.BadUse(
            "calibration compares with a cloud model: name it with --cloud-reference, or say --no-calibrate "
            "(such a release answers, but cannot tell when to escalate)"
        )
    from weir.cli.building import Order, build
    from weir.cli.progress import Bars

    order = Order(source, out, name, version, cloud_reference if calibrate else None, items, max_disagreement)
    with Bars(report.err(), quiet=as_json) as progress:
        manifest = build(order, progress)
    calibrations = [
        {"precision": c.precision, "commit_rule": c.commit_rule, "n": c.n, "n_agree": c.n_agree, "auroc": c.auroc,
         "threshold": c.threshold, "escalation_share": c.escalation_share}
        for c in manifest.calibrations
    ]  # fmt: skip
    if as_json:
        report.emit({"release": manifest.id, "folder": str(out), "calibrations": calibrations})
        return
    report.out().print(manifest.id, markup=False)
    for c in calibrations:
        auroc = "none" if c["auroc"] is None else f"{c['auroc']:.2f}"
        report.err().print(
            f"{c['precision']}-bit, {c['commit_rule']}: {c['n_agree']} of {c['n']} items agree with the cloud, "
            f"AUROC {auroc}, threshold {c['threshold']:.2f}, {c['escalation_share']:.0%} escalate",
            style="dim", soft_wrap=True, markup=False,
        )  # fmt: skip
    report.err().print(f"serve it: weir edge serve --releases-dir {out}", style="dim", soft_wrap=True, markup=False)
