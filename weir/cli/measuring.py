"""The measured part of a build: texts read and bounds understood before it, figures and report after it.

Imports the quantize extra when it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weir.cli import report

if TYPE_CHECKING:
    from quantize.evaluation import Evaluation
    from quantize.gates import Gates
    from quantize.subjects import Classifiers
    from quantize.verdicts import LabelledText
    from quantize.weight_errors import WeightError
    from release.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Measuring:
    """What a release is measured on and which bounds it must keep.

    `text` is for decoders, None takes Weir's own; `csv` holds a classifier's labelled texts. Bounds are texts
    such as "0.1", for both precisions, or "4=0.2".
    """

    text: Path | None = None
    csv: Path | None = None
    max_kl: tuple[str, ...] = ()
    min_agreement: tuple[str, ...] = ()


class Measurement:
    """One order to measure, with everything read that can be refused before the work."""

    def __init__(self, asked: Measuring, calibration_text: str) -> None:
        """Raises BadUse for a bound that is none, QuantizeError for texts that cannot be used."""
        from quantize.evaluation_text import demand_apart, read_text
        from quantize.gates import Gates, bounds
        from quantize.verdicts import read_csv

        try:
            self._gates: Gates = Gates(bounds(asked.max_kl), bounds(asked.min_agreement))
        except ValueError as error:
            raise report.BadUse(str(error)) from error
        self._text, self._calibration_text = read_text(asked.text), calibration_text
        demand_apart(self._text, calibration_text)
        self._items: tuple[LabelledText, ...] = () if asked.csv is None else read_csv(asked.csv)

    def run(
        self,
        folder: Path,
        source: Path,
        *,
        threads: int,
        progress: Any,
        classifiers: Classifiers | None = None,
        items: Sequence[LabelledText] = (),
    ) -> tuple[Manifest, Evaluation]:
        """Measures the release in `folder` and writes the figures into its manifest.

        A classifier is opened by `classifiers` and judged on the CSV that was asked for, else on `items`.
        """
        from quantize.evaluate import evaluate_release

        return evaluate_release(
            folder,
            source,
            text=self._text,
            calibration_text=self._calibration_text,
            items=self._items or items,
            classifiers=classifiers,
            threads=threads,
            progress=progress,
        )

    def gate(self, out: Path, manifest: Manifest, found: Evaluation, errors: Sequence[WeightError]) -> None:
        """Raises QualityRefused where a bound is not kept; the report of what was built is there then."""
        if refused := self._gates.failures(found):
            self.report(out, manifest, found, errors, refused)
        self._gates.demand(found)

    def report(
        self,
        out: Path,
        manifest: Manifest,
        found: Evaluation,
        errors: Sequence[WeightError],
        refused: Sequence[str] = (),
    ) -> Path:
        """Writes the report beside `out` and returns its path."""
        from quantize.quality_report import report_folder, write_report

        return write_report(report_folder(out), manifest, found, errors, refused)
