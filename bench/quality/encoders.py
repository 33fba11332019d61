"""Rivals of a text encoder with a fitted head, compared by the labels it gives.

Encoders come as true float weights, which a language model from a 4-bit file does not: "for direction", this
says how nesting does there. The head is fitted on CLINC150's training texts (150 intents and none of them),
the figures are of its test texts. Errors are compensated on training texts.
"""

from __future__ import annotations

import csv
import gzip
import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from bench.quality.errors import MeasurementError
from bench.quality.rivals import Build, Rivals, kept
from quantize.encoder.build import build_classifier, compensating
from quantize.encoder.subjects import EncoderClassifiers, Served
from quantize.nest import Nester
from quantize.progress import Progress
from quantize.sources.resolve import Source
from quantize.verdicts import LabelledText, digest, judge

DATA_FILE = Path("intent") / "clinc150.jsonl.gz"
_TASK = "measuring quality"
_TEXTS = 2000


def intents(data: Path | None, seed: int) -> tuple[tuple[LabelledText, ...], tuple[LabelledText, ...]]:
    """CLINC150's training texts, and the test texts that `seed` draws. Raises MeasurementError."""
    if data is None:
        raise MeasurementError(
            "an encoder is measured on CLINC150: give the data sets' folder with --data or WEIR_DATA"
        )
    path = data / DATA_FILE
    try:
        with gzip.open(path, "rt", encoding="utf-8") as handle:
            records = list(map(json.loads, handle))
    except FileNotFoundError as error:
        raise MeasurementError(f"{path} is not there: give the data sets' folder with --data or WEIR_DATA") from error
    except (OSError, EOFError, ValueError) as error:
        raise MeasurementError(f"{path} is not a compressed file of JSON lines: {error}") from error
    fitted, tested = (
        [LabelledText(record["text"], record["label"]) for record in records if record["split"] == split]
        for split in ("train", "test")
    )
    return tuple(fitted), tuple(random.Random(seed).sample(tested, min(_TEXTS, len(tested))))


def encoder_rivals(source: Source, fitted: tuple[LabelledText, ...], *, threads: int, progress: Progress) -> Rivals:
    """The rivals made from the encoder `source` with a head for the labels of `fitted`."""

    def prepare(draft: Path) -> Build:
        table = draft / "fitted.csv"
        with table.open("w", encoding="utf-8", newline="") as handle:
            writer = csv.writer(handle)
            writer.writerow(("text", "label"))
            writer.writerows((item.text, item.label) for item in fitted)

        def release(out: Path, nester: Nester | None) -> None:
            make = compensating if nester is None else lambda *_: nester
            build_classifier(
                source.folder, out, name=source.name.lower(), csv=table, nester=make, progress=progress, threads=threads
            )

        return Build(release)

    return kept(source.name, {"source": source.sha256, "texts": digest(fitted)}, prepare, progress)


def compare_encoders(
    rivals: Rivals, source: Path, tested: tuple[LabelledText, ...], *, threads: int, progress: Progress
) -> dict[str, Any]:
    """The figures of all rivals on the same texts."""
    progress.start(_TASK, len(tested), "steps")
    subjects = {name: Served(release, bits, None, threads) for name, release, bits in rivals.named()}
    first, verdicts = judge(
        EncoderClassifiers(rivals.nested).source(source, threads),
        subjects,
        tested,
        told=lambda done: progress.advance(_TASK, done),
    )
    progress.finish(_TASK)
    return {
        "kl": {name: float(np.mean(verdict.divergences)) for name, verdict in verdicts.items()},
        "top1": {name: float((verdict.tops == first.tops).mean()) for name, verdict in verdicts.items()},
        "accuracy": {"float32": first.accuracy, **{name: verdict.accuracy for name, verdict in verdicts.items()}},
        "positions": len(tested),
    }
