"""`weir pull` and `weir quantize`: models in, releases out."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from weir.cli import report
from weir.cli.building import Built, HeadBits, Method, Order, build
from weir.cli.classifying import build_classifier_release
from weir.cli.extras import require
from weir.cli.measuring import Measuring

Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")]


class Task(StrEnum):
    """As a release's manifest names it."""

    GENERATE = "generate"
    CLASSIFY = "classify"


def pull(
    source: Annotated[str, typer.Argument(help="Catalogue name, folder, GGUF file or hub id.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Fetch a model, check it, and convert it once into the cache."""
    require("quantize", "weir pull", "matplotlib", "onnx", "onnx_ir", "onnxruntime", "onnxruntime_genai", "sklearn")
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
        str | None, typer.Option(help="What to be calibrated against: a model; for classifiers a release.")
    ] = None,
    calibrate: Annotated[
        bool, typer.Option(help="Fit confidences; a model that writes needs --cloud-reference.")
    ] = True,
    items: Annotated[Path | None, typer.Option(help="JSONL of items to fit on; default: the demo's.")] = None,
    max_disagreement: Annotated[float, typer.Option(min=0.0, max=1.0, help="Risk the thresholds aim at.")] = 0.1,
    method: Annotated[
        Method, typer.Option(help="gptq compensates rounding errors on a text; rtn is quicker and worse at 4 bits.")
    ] = Method.GPTQ,
    head_bits: Annotated[
        HeadBits,
        typer.Option(help="Head and embedding at 4 bits: nested like the rest (4), or 8 bits in both precisions."),
    ] = HeadBits.NESTED,
    calibration_text: Annotated[
        Path | None, typer.Option(help="Text that gptq compensates errors on; default: Weir's own.")
    ] = None,
    evaluate: Annotated[bool, typer.Option(help="Measure the release against its float32 source.")] = True,
    evaluation_text: Annotated[
        Path | None, typer.Option(help="Text to measure on, never the calibration text; default: Weir's own.")
    ] = None,
    evaluation_csv: Annotated[
        Path | None, typer.Option(help="For classifiers: texts to measure on, columns text and label.")
    ] = None,
    task: Annotated[
        Task, typer.Option(help="What the release is for: to write text, or to choose a label.")
    ] = Task.GENERATE,
    labels_csv: Annotated[
        Path | None, typer.Option(help="For classifiers: texts to fit the head on, columns text and label.")
    ] = None,
    layers: Annotated[
        int | None, typer.Option(min=1, help="For classifiers: the encoder's first layers alone, for a smaller edge.")
    ] = None,
    max_kl: Annotated[
        list[str] | None,
        typer.Option(metavar="[BITS=]NATS", help="Publish only under this KL divergence; e.g. 0.2 or 8=0.01."),
    ] = None,
    min_agreement: Annotated[
        list[str] | None,
        typer.Option(metavar="[BITS=]SHARE", help="Publish only from this top-1 agreement; e.g. 0.8 or 8=0.95."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Build a release: nested 4- and 8-bit weights, how far they are from their source, and when to trust them."""
    require("quantize", "weir quantize")
    for option, given in (("--labels-csv", labels_csv), ("--layers", layers)):
        if task is Task.GENERATE and given is not None:
            raise report.BadUse(f"{option} is for classifiers: say --task classify")
    if task is Task.CLASSIFY:
        _refuse_generation(cloud_reference, calibration_text, evaluation_text)
    elif calibrate and cloud_reference is None:
        raise report.BadUse(
            "calibration compares with a cloud model: name it with --cloud-reference, or say --no-calibrate "
            "(such a release answers, but cannot tell when to escalate)"
        )
    if task is Task.CLASSIFY and head_bits is not HeadBits.NESTED:
        raise report.BadUse("--head-bits is for models that write text: leave it out with --task classify")
    if calibration_text is not None and method is Method.RTN:
        raise report.BadUse("--calibration-text is for --method gptq: rtn looks at no text")
    if not evaluate and (evaluation_text or evaluation_csv or max_kl or min_agreement):
        raise report.BadUse("--no-evaluate measures nothing: leave out what asks for a text, a CSV or a bound")
    from weir.cli.progress import Bars

    measuring = Measuring(evaluation_text, evaluation_csv, tuple(max_kl or ()), tuple(min_agreement or ()))
    reference = cloud_reference if calibrate else None
    if task is Task.CLASSIFY and calibrate:
        reference = cloud_reference or ""  # without one, on the labels of the texts
    order = Order(
        source, out, name, version, reference, items, max_disagreement, method, calibration_text,
        measuring if evaluate else None, head_bits, layers,
    )  # fmt: skip
    with Bars(report.err(), quiet=as_json) as progress:
        if task is Task.CLASSIFY:
            built = build_classifier_release(order, labels_csv, progress)
        else:
            built = build(order, progress)
    if as_json:
        report.emit(_document(built, out))
    else:
        _draw(built, out)


def _refuse_generation(reference: str | None, calibration_text: Path | None, evaluation_text: Path | None) -> None:
    """Options that mean nothing for a classifier."""
    for option, value in (("--calibration-text", calibration_text), ("--evaluation-text", evaluation_text)):
        if value is not None:
            raise report.BadUse(f"{option} is for models that write text: leave it out with --task classify")
    if reference is not None and not (Path(reference).expanduser() / "manifest.json").is_file():
        raise report.BadUse(
            f"--cloud-reference {reference}: with --task classify give the folder of the release that answers "
            "escalations, or leave it out to calibrate on the labels of the texts"
        )


def _document(built: Built, out: Path) -> dict[str, Any]:
    """Everything about a build as plain JSON."""
    manifest = built.manifest
    return {
        "release": manifest.id,
        "folder": str(out),
        "report": None if built.report is None else str(built.report),
        "method": manifest.recipe.method,
        "quality": [dataclasses.asdict(figure) for figure in manifest.quality],
        "warnings": [] if built.evaluation is None else list(built.evaluation.warnings),
        "self_tests": len(manifest.self_tests),
        "calibrations": [
            {"precision": c.precision, "commit_rule": c.commit_rule, "n": c.n, "n_agree": c.n_agree, "auroc": c.auroc,
             "threshold": c.threshold, "escalation_share": c.escalation_share,
             "early_stop": None if c.early_stop is None else dataclasses.asdict(c.early_stop)}
            for c in manifest.calibrations
        ],
    }  # fmt: skip


def _draw(built: Built, out: Path) -> None:
    report.out().print(built.manifest.id, markup=False)
    lines = []
    for bits, width in ({} if built.evaluation is None else built.evaluation.widths).items():
        accuracy = "" if width.accuracy is None else f", accuracy {width.accuracy:.1%}"
        lines.append(f"{bits}-bit: KL to the float32 source {width.kl:.4f}, top-1 agreement {width.top1:.1%}{accuracy}")
    for c in built.manifest.calibrations:
        auroc = "none" if c.auroc is None else f"{c.auroc:.2f}"
        lines.append(
            f"{c.precision}-bit, {c.commit_rule}: {c.n_agree} of {c.n} items agree with the {c.target}, "
            f"AUROC {auroc}, threshold {c.threshold:.2f}, {c.escalation_share:.0%} escalate"
        )
        if c.early_stop is not None:
            stop = c.early_stop
            lines.append(
                f"{c.precision}-bit, {c.commit_rule}: early stop gave up {stop.false_stops} of {stop.n} held-out "
                f"answers that end well (at most {stop.max_false_stops:.0%}) and saves {stop.tokens_saved} of "
                f"{stop.tokens} tokens of the others"
            )
    if built.report is not None:
        lines.append(f"report: {built.report}")
    lines.append(f"serve it: weir edge serve --releases-dir {out}")
    for line in lines:
        report.err().print(line, style="dim", soft_wrap=True, markup=False)
