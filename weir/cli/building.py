"""From a source to a release that may be published: pull, build, try, measure, calibrate, with one bar each.

Shared by `weir quantize` and the demo, so that the demo's release is one a user could have built. What
can be refused is refused before the work begins; a release that does not keep its bounds never reaches the
place it was meant for. Imports the quantize extra when it runs.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir.cli import report
from weir.cli.measuring import Measurement, Measuring
from weir.demo.questions import as_records
from weir.demo.questions import load as load_questions

if TYPE_CHECKING:
    from quantize.evaluation import Evaluation
    from quantize.export import Export
    from quantize.nest import Nester
    from release.manifest import Manifest


class HeadBits(StrEnum):
    """The width of head and embedding at 4 bits: nested like the rest, or 8 bits in both precisions."""

    NESTED = "4"
    EIGHT = "8"


class Method(StrEnum):
    """How weights are rounded: with their errors compensated on a text, or each to its nearest code."""

    GPTQ = "gptq"
    RTN = "rtn"


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be built. Without `cloud_reference` it is not calibrated, without `measuring` not measured.

    `items` is a file of JSON lines to calibrate on; None takes the demo's. `text` is what errors are
    compensated on; None takes Weir's own.
    """

    source: str
    out: Path
    name: str | None
    version: str
    cloud_reference: str | None
    items: Path | None
    max_disagreement: float
    method: Method = Method.GPTQ
    text: Path | None = None
    measuring: Measuring | None = field(default_factory=Measuring)
    head_bits: HeadBits = HeadBits.NESTED
    layers: int | None = None  # of an encoder, the first so many


@dataclass(frozen=True, slots=True)
class Built:
    """The release's manifest, what was measured, and where the report of it lies."""

    manifest: Manifest
    evaluation: Evaluation | None = None
    report: Path | None = None


def build(order: Order, progress: Any, *, export: Export | None = None) -> Built:
    """Builds `order.out`. What fails in between leaves nothing there. `export` makes the graph, if not the usual way.

    Raises QualityRefused where the release does not keep its bounds.
    """
    from quantize.items import from_records, read_items
    from quantize.sources.resolve import resolve
    from quantize.weight_errors import Watched

    if order.out.exists():
        raise report.BadUse(f"{order.out} exists already: choose another folder or remove it")
    items = from_records(as_records(load_questions().fitted)) if order.items is None else read_items(order.items)
    text = _calibration_text(order)
    measurement = None if order.measuring is None else Measurement(order.measuring, text)
    source = resolve(order.source, progress)
    watched = Watched(_nester(order.method, source.folder, text, progress))
    cloud = None if order.cloud_reference is None else resolve(order.cloud_reference, progress)
    order.out.parent.mkdir(parents=True, exist_ok=True)
    draft = order.out.with_name(f".{order.out.name}-making")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        _release(order, draft, source, watched, "" if cloud is None else cloud.name, progress, export)
        manifest = _tried(draft, progress)
        evaluation, told = None, None
        if measurement is not None:
            # Before the calibration, which takes longer: a release that is refused need not be calibrated.
            manifest, evaluation = measurement.run(draft, source.folder, threads=_threads(), progress=progress)
            measurement.gate(order.out, manifest, evaluation, watched.errors)
        if cloud is not None:
            manifest = _calibrated(order, draft, cloud, items, progress)
        if measurement is not None and evaluation is not None:
            told = measurement.report(order.out, manifest, evaluation, watched.errors)
        draft.rename(order.out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Built(manifest, evaluation, told)


def _calibration_text(order: Order) -> str:
    """The text that errors are compensated on; empty where none are."""
    from quantize.calibration_text import read_text

    return read_text(order.text) if order.method is Method.GPTQ else ""


def _nester(method: Method, folder: Path, text: str, progress: Any) -> Nester:
    from quantize.architecture import read_source
    from quantize.compensate import Compensating
    from quantize.nest import RoundToNearest

    if method is Method.RTN:
        return RoundToNearest()
    return Compensating(read_source(folder), text, threads=_threads(), progress=progress)


def _release(
    order: Order, draft: Path, source: Any, nester: Nester, cloud: str, progress: Any, export: Export | None
) -> None:
    from quantize.build import build_release
    from quantize.export import export_graph

    build_release(
        source.folder,
        draft,
        name=order.name or source.name.lower(),
        version=order.version,
        cloud_reference=cloud,
        nester=nester,
        progress=progress,
        threads=_threads(),
        export=export or export_graph,
        head_bits=int(order.head_bits),
    )


def _tried(draft: Path, progress: Any) -> Manifest:
    """Writes down what the release answers, so that nodes can try the same and compare."""
    from quantize.selftest import record_self_tests

    return record_self_tests(draft, threads=_threads(), progress=progress)


def _calibrated(order: Order, draft: Path, cloud: Any, items: Any, progress: Any) -> Manifest:
    """A release that was asked to be calibrated and is not would escalate by luck: both or nothing."""
    from quantize.calibrate import calibrate_release

    return calibrate_release(
        draft,
        items,
        cloud.folder,
        cloud_reference=cloud.name,
        max_disagreement=order.max_disagreement,
        edge_threads=_threads(),
        cloud_threads=_threads(),
        progress=progress,
    )


def _threads() -> int:
    from edge.config import available_cpus

    return available_cpus()
