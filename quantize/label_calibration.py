"""Gives a classifier's release its confidence: how likely its answer is the one the cloud's classifier would give.

Texts that the head was not fitted on are labelled at every precision. Where a release of the cloud's classifier is
at hand, agreement is with its answers; otherwise with the labels the texts carry, as if the cloud were always
right, and the calibration says so (`target`). Of labels that do not exclude each other the whole set must agree. The
fit and the threshold are those of decoders (quantize.fit), over the router's label features.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from quantize.errors import QuantizeError
from quantize.fit import SEED, Fitted, Purpose, fit_values
from quantize.progress import Progress, Silent
from quantize.sealing import reseal
from quantize.verdicts import Answers, LabelledText
from quantize.verdicts import digest as items_digest
from release.folder import Release, open_release
from release.manifest import CloudReference, Labelling, Manifest, QualityFigure
from release.planes import Floats
from router.label_confidence import LABEL_FEATURES, LabelSignals, label_features, of_many, of_one
from runtime.cpu import cpu_class
from runtime.ort.classify import ClassifierModel
from runtime.tokenizer import Tokenizer

LEAST_ITEMS = 20
AGREEMENT = "agreement_with_cloud"
CORRECT = "agreement_with_labels"
_END = "end"
_TASK = "calibrating"


def calibrate_classifier(
    folder: Path,
    items: Sequence[LabelledText],
    *,
    cloud: Path | None = None,
    max_disagreement: float,
    threads: int = 1,
    progress: Progress | None = None,
) -> Manifest:
    """Calibrates the release in `folder` on `items`; returns its new manifest.

    `cloud` is the folder of the release that escalations are answered by. Raises QuantizeError or ReleaseError;
    the release is then as it was.
    """
    progress = progress or Silent()
    if len(items) < LEAST_ITEMS:
        raise QuantizeError(f"{len(items)} texts are too few to calibrate on: give at least {LEAST_ITEMS}")
    if not 0 < max_disagreement < 1:
        raise QuantizeError(f"max_disagreement must be between 0 and 1, not {max_disagreement}")
    release = open_release(folder, verify=False)
    progress.start(_TASK, len(release.precisions) + (cloud is not None), "steps")
    wanted, reference = [item.label for item in items], release.manifest.cloud
    if cloud is not None:
        wanted, reference = _answers_of(cloud, items, threads)
        progress.advance(_TASK, 1)
    target = "labels" if cloud is None else "cloud"
    fitted: dict[int, Fitted] = {}
    for bits in release.precisions:
        purpose = Purpose(release.manifest.name, bits, cpu_class(), _END, max_disagreement, target)
        fitted[bits] = _fit(release, purpose, items, wanted, threads)
        progress.advance(_TASK, 1)
    progress.finish(_TASK)
    return reseal(folder, _calibrated(release.manifest, fitted, items, reference, target))


def signals_of(logits: Floats, labelling: Labelling, tokens: int) -> LabelSignals:
    """What a node is told confidence from, for one text's logits [L]."""
    values = np.asarray(logits, np.float64)
    if labelling.multi_label:
        own = 1 / (1 + np.exp(-np.clip(values, -500, 500)))
        return of_many(own.tolist(), [labelling.threshold(index) for index in range(len(own))], tokens)
    weights = np.exp(values - values.max())
    return of_one((weights / weights.sum()).tolist(), tokens)


def _fit(
    release: Release, purpose: Purpose, items: Sequence[LabelledText], wanted: Sequence[str], threads: int
) -> Fitted:
    manifest = release.manifest
    rule, tokenizer = Answers(manifest.labels, manifest.labelling), Tokenizer.load(release.path)
    logits = ClassifierModel(release, purpose.precision, threads).logits([item.text for item in items])
    longest = manifest.architecture.context_length
    values = [
        label_features(signals_of(row, manifest.labelling, min(len(tokenizer.encode(item.text)), longest)))
        for row, item in zip(logits, items, strict=True)
    ]
    agreed = [rule.answer(row) == answer for row, answer in zip(logits, wanted, strict=True)]
    return fit_values(purpose, LABEL_FEATURES, values, agreed)


def _answers_of(folder: Path, items: Sequence[LabelledText], threads: int) -> tuple[list[str], CloudReference]:
    """What the cloud's classifier says, at the most bits it has."""
    release = open_release(folder, verify=False)
    manifest = release.manifest
    rule = Answers(manifest.labels, manifest.labelling)
    logits = ClassifierModel(release, max(release.precisions), threads).logits([item.text for item in items])
    return [rule.answer(row) for row in logits], CloudReference(manifest.id, manifest.recipe.source_digest)


def _calibrated(
    manifest: Manifest,
    fitted: dict[int, Fitted],
    items: Sequence[LabelledText],
    reference: CloudReference,
    target: str,
) -> Manifest:
    data, name = items_digest(items), AGREEMENT if target == "cloud" else CORRECT
    figures = tuple(
        QualityFigure(name, entry.calibration.n_agree / len(items), bits, len(items), SEED, data, cpu_class())
        for bits, entry in fitted.items()
    )
    return dataclasses.replace(
        manifest,
        quality=(*(figure for figure in manifest.quality if figure.name not in (AGREEMENT, CORRECT)), *figures),
        calibrations=tuple(entry.calibration for entry in fitted.values()),
        cloud=reference,
    )
