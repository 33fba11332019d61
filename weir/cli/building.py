"""From a source to a calibrated release: pull, build, calibrate, with one bar each.

Shared by `weir quantize` and the demo, so that the demo's release is one a user could have built.
Imports the quantize extra when it runs.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weir.cli import report
from weir.demo.questions import as_records
from weir.demo.questions import load as load_questions


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be built. Without `cloud_reference` the release is not calibrated.

    `items` is a file of JSON lines to calibrate on; None takes the demo's.
    """

    source: str
    out: Path
    name: str | None
    version: str
    cloud_reference: str | None
    items: Path | None
    max_disagreement: float


def build(order: Order, progress: Any) -> Any:
    """Builds `order.out`; returns its manifest. What fails in between leaves nothing at `out`."""
    from quantize.build import build_release
    from quantize.calibrate import calibrate_release
    from quantize.items import from_records, read_items
    from quantize.sources.resolve import resolve

    if order.out.exists():
        raise report.BadUse(f"{order.out} exists already: choose another folder or remove it")
    items = from_records(as_records(load_questions().fitted)) if order.items is None else read_items(order.items)
    source = resolve(order.source, progress)
    cloud = None if order.cloud_reference is None else resolve(order.cloud_reference, progress)
    order.out.parent.mkdir(parents=True, exist_ok=True)
    draft = order.out.with_name(f".{order.out.name}-making")
    shutil.rmtree(draft, ignore_errors=True)
    manifest = build_release(
        source.folder,
        draft,
        name=order.name or source.name.lower(),
        version=order.version,
        cloud_reference="" if cloud is None else cloud.name,
        progress=progress,
        threads=_threads(),
    )
    try:
        if cloud is not None:
            # A release that was asked to be calibrated and is not would escalate by luck: both or nothing.
            manifest = calibrate_release(
                draft,
                items,
                cloud.folder,
                cloud_reference=cloud.name,
                max_disagreement=order.max_disagreement,
                edge_threads=_threads(),
                cloud_threads=_threads(),
                progress=progress,
            )
        draft.rename(order.out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return manifest


def _threads() -> int:
    from edge.config import available_cpus

    return available_cpus()
