"""From an encoder and labelled texts, or a ready-made ONNX classifier, to a classifier's release that may be published.

What `weir.cli.building` is for decoders: refusals before the work, figures and bounds before the release is put
in its place. Imports the quantize extra when it runs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir.cli import report
from weir.cli.building import Built, Method, Order
from weir.cli.measuring import Measurement

if TYPE_CHECKING:
    from quantize.encoder.floats import FloatEncoder
    from quantize.nest import Nester
    from quantize.progress import Progress
    from quantize.subjects import Classifiers
    from quantize.verdicts import LabelledText
    from quantize.weight_errors import Watched
    from release.manifest import Manifest


def build_classifier_release(order: Order, labels_csv: Path | None, progress: Any) -> Built:
    """Builds `order.out`. A tenth of `labels_csv` is held out and measured on, where no other CSV is given.

    Raises QualityRefused where the release does not keep its bounds.
    """
    from quantize.selftest import record_self_tests

    if order.out.exists():
        raise report.BadUse(f"{order.out} exists already: choose another folder or remove it")
    measurement = None if order.measuring is None else Measurement(order.measuring, "")
    work = _work(order, labels_csv, measurement is not None, progress)
    order.out.parent.mkdir(parents=True, exist_ok=True)
    draft = order.out.with_name(f".{order.out.name}-making")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        work.build(draft, progress)
        manifest = record_self_tests(draft, threads=_threads(), progress=progress)
        evaluation, told, errors = None, None, []
        if measurement is not None:
            manifest, evaluation = measurement.run(
                draft,
                work.source,
                threads=_threads(),
                progress=progress,
                classifiers=work.classifiers(draft),
                items=work.items,
            )
            errors = [error for nester in work.watched for error in nester.errors]
            measurement.gate(order.out, manifest, evaluation, errors)
        manifest = _calibrated(order, draft, manifest, work.items, progress)
        if measurement is not None and evaluation is not None:
            told = measurement.report(order.out, manifest, evaluation, errors)
        draft.rename(order.out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Built(manifest, evaluation, told)


def _calibrated(
    order: Order, draft: Path, manifest: Manifest, items: Sequence[LabelledText], progress: Any
) -> Manifest:
    """Fitted on the texts that were held out, against another release's answers or the labels they carry."""
    from quantize.label_calibration import LEAST_ITEMS, calibrate_classifier

    if order.cloud_reference is None:
        return manifest
    if len(items) < LEAST_ITEMS:
        progress.note(
            f"{len(items)} texts that were not fitted on are too few to calibrate on ({LEAST_ITEMS} are needed): "
            "without a confidence, every text wants to escalate"
        )
        return manifest
    return calibrate_classifier(
        draft,
        items,
        cloud=Path(order.cloud_reference).expanduser() if order.cloud_reference else None,
        max_disagreement=order.max_disagreement,
        threads=_threads(),
        progress=progress,
    )


def _work(order: Order, labels_csv: Path | None, measured: bool, progress: Any) -> _Fitted | _ReadyMade:
    """What is to be done, with everything read that can be refused before it."""
    from quantize.classifier.source import find_graph
    from quantize.encoder.head import split
    from quantize.sources.resolve import resolve
    from quantize.verdicts import read_csv

    csv = None if order.measuring is None else order.measuring.csv
    folder = Path(order.source).expanduser()
    if folder.is_dir() and find_graph(folder) is not None:
        if labels_csv is not None:
            raise report.BadUse(f"{folder} holds a classifier that has its head already: leave --labels-csv out")
        if order.layers is not None:
            raise report.BadUse(f"{folder} holds a ready-made graph: leave --layers out")
        if measured and csv is None:
            raise report.BadUse("a ready-made classifier is measured on labelled texts: give --evaluation-csv")
        items = () if csv is None else read_csv(csv)
        return _ReadyMade(folder.resolve(), order.name or folder.resolve().name.lower(), order, items)
    if labels_csv is None:
        raise report.BadUse("a classifier's head is fitted on labelled texts: give --labels-csv")
    _, held_out = split(read_csv(labels_csv))
    source = resolve(order.source, progress)
    return _Fitted(source.folder, order.name or source.name.lower(), order, labels_csv, held_out)


@dataclass(frozen=True, slots=True)
class _Fitted:
    """A head fitted on an encoder's features."""

    source: Path
    name: str
    order: Order
    csv: Path
    items: Sequence[LabelledText]
    watched: list[Watched] = field(default_factory=list)

    def build(self, draft: Path, progress: Any) -> Manifest:
        from quantize.encoder.build import build_classifier

        return build_classifier(
            self.source,
            draft,
            name=self.name,
            csv=self.csv,
            version=self.order.version,
            nester=self._nester,
            progress=progress,
            threads=_threads(),
            layers=self.order.layers,
        )

    def classifiers(self, draft: Path) -> Classifiers:
        from quantize.encoder.subjects import EncoderClassifiers
        from release.folder import open_release

        return EncoderClassifiers(open_release(draft, verify=False))

    def _nester(
        self,
        encoder: FloatEncoder,
        texts: Sequence[str],
        encode: Callable[[str], list[int]],
        progress: Progress,
        threads: int,
    ) -> Nester:
        """The method's nester, kept where its errors can be read."""
        from quantize.encoder.build import compensating, rounding
        from quantize.weight_errors import Watched

        make = compensating if self.order.method is Method.GPTQ else rounding
        self.watched.append(Watched(make(encoder, texts, encode, progress, threads)))
        return self.watched[-1]


@dataclass(frozen=True, slots=True)
class _ReadyMade:
    """An ONNX classifier of the user's own, rounded to nearest."""

    source: Path
    name: str
    order: Order
    items: Sequence[LabelledText] = ()
    watched: list[Watched] = field(default_factory=list)

    def build(self, draft: Path, progress: Any) -> Manifest:
        from quantize.classifier.build import build_ready_made
        from quantize.nest import RoundToNearest
        from quantize.weight_errors import Watched

        self.watched.append(Watched(RoundToNearest(search=True)))
        return build_ready_made(
            self.source,
            draft,
            name=self.name,
            version=self.order.version,
            nester=self.watched[-1],
            progress=progress,
            threads=_threads(),
        )

    def classifiers(self, draft: Path) -> Classifiers:
        from quantize.classifier.subjects import ReadyMadeClassifiers
        from release.folder import open_release

        return ReadyMadeClassifiers(open_release(draft, verify=False))


def _threads() -> int:
    from edge.config import available_cpus

    return available_cpus()
