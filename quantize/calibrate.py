"""Gives a release its confidence: runs both models on the items, labels agreement, fits, writes.

Per precision and commit rule one calibration: "end", from the signals of the whole answer, and
"prefix:<tokens>", from those of its first tokens, both against whether the whole answer agreed. Each has an
early stop, from the signals after every token (quantize.early_stop). The cloud's answers serve all of them.
Everything is kept in calibration.json (with the digest of every item, so that nobody is asked what was
fitted on) and the figures in the manifest, whose id changes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantize.agreement import BAR_QUANTILE, clears, open_bar, same_answer
from quantize.architecture import read_source
from quantize.early_stop import with_early_stop
from quantize.edge_answers import EdgeAnswer, edge_answers
from quantize.errors import QuantizeError
from quantize.fit import SEED, Fitted, Purpose, fit
from quantize.items import CalibrationItem, items_digest
from quantize.progress import Progress, Silent
from quantize.reference import Reference, ReferenceAnswer
from release.document import plain
from release.folder import Release, describe_file, open_release
from release.manifest import CALIBRATION, MANIFEST_NAME, CloudReference, Manifest, QualityFigure, sealed, write
from runtime.cpu import cpu_class

MAX_DISAGREEMENT = 0.10
PREFIX_TOKENS = 8
_OWN_ANSWERS = 1  # sampled per open item, for the bar
_FIGURE = "agreement_with_cloud"


@dataclass(frozen=True, slots=True)
class Labels:
    """Whether each item's answer agreed; open items by the proxy, whose scores and bar are kept."""

    agreed: tuple[bool, ...]
    scores: Mapping[int, float | None]
    bar: float


def calibrate_release(
    release_dir: Path,
    items: Sequence[CalibrationItem],
    cloud_folder: Path,
    *,
    cloud_reference: str = "",
    max_disagreement: float = MAX_DISAGREEMENT,
    prefix_tokens: int = PREFIX_TOKENS,
    edge_threads: int = 2,
    cloud_threads: int = 2,
    progress: Progress | None = None,
) -> Manifest:
    """Calibrates a release against the cloud model in `cloud_folder`; returns the new manifest.

    `cloud_reference` names that model; empty keeps the name the release has. Raises QuantizeError or
    ReleaseError; the release is then as it was before.
    """
    progress = progress or Silent()
    if not items:
        raise QuantizeError("there is nothing to calibrate on: give items")
    if not 0 < max_disagreement < 1:
        raise QuantizeError(f"max_disagreement must be between 0 and 1, not {max_disagreement}")
    if len({item.digest for item in items}) != len(items):
        raise QuantizeError("the same calibration item occurs twice: each may be given once")
    # A calibration.json that does not fit is what this run replaces.
    release = open_release(release_dir, skip=frozenset({CALIBRATION}))
    answers = _edge(release, items, prefix_tokens, edge_threads, progress)
    labels = _labels(items, answers, cloud_folder, cloud_threads, progress)
    fitted = _fit(release.manifest.name, answers, labels, max_disagreement, prefix_tokens)
    cloud = CloudReference(cloud_reference or release.manifest.cloud.name, _digest(cloud_folder))
    return _write(release, items, labels, fitted, cloud)


def _edge(
    release: Release, items: Sequence[CalibrationItem], prefix_tokens: int, threads: int, progress: Progress
) -> dict[int, list[EdgeAnswer]]:
    answers = {}
    for precision in release.precisions:
        task = f"edge answers at {precision} bits"
        progress.start(task, len(items), "steps")
        answers[precision] = edge_answers(
            release,
            precision,
            items,
            prefix_tokens=prefix_tokens,
            threads=threads,
            told=lambda task=task: progress.advance(task, 1),  # type: ignore[misc]
        )
        progress.finish(task)
    return answers


def _labels(
    items: Sequence[CalibrationItem],
    answers: Mapping[int, Sequence[EdgeAnswer]],
    folder: Path,
    threads: int,
    progress: Progress,
) -> dict[int, Labels]:
    """Agreement per precision."""
    opened = [index for index, item in enumerate(items) if item.kind == "open"]
    open_items = [items[index] for index in opened]
    task = "cloud answers"
    # Greedy for every item; for the open ones samples for the bar and a score per precision.
    progress.start(task, len(items) + len(opened) * (_OWN_ANSWERS + len(answers)), "steps")
    reference = Reference(folder, threads=threads, eos_token_ids=read_source(folder).eos_token_ids)

    def told() -> None:
        progress.advance(task, 1)

    cloud = reference.answers(items, told=told)
    own = [
        answer.score
        for draw in range(_OWN_ANSWERS if opened else 0)
        for answer in reference.answers(open_items, told=told, seed=SEED + draw)
        if answer.text.strip()
    ]
    bar = open_bar(own)
    labels = {}
    for precision, given in answers.items():
        scores = reference.scores(open_items, [given[index].text for index in opened], told=told)
        labels[precision] = _label(items, given, cloud, dict(zip(opened, scores, strict=True)), bar)
    progress.finish(task)
    return labels


def _label(
    items: Sequence[CalibrationItem],
    given: Sequence[EdgeAnswer],
    cloud: Sequence[ReferenceAnswer],
    scores: Mapping[int, float | None],
    bar: float,
) -> Labels:
    agreed = tuple(
        clears(scores[index], bar) if item.kind == "open" else same_answer(given[index].text, cloud[index].text)
        for index, item in enumerate(items)
    )
    return Labels(agreed, scores, bar)


def _fit(
    name: str,
    answers: Mapping[int, Sequence[EdgeAnswer]],
    labels: Mapping[int, Labels],
    max_disagreement: float,
    prefix_tokens: int,
) -> dict[tuple[int, str], Fitted]:
    here = cpu_class()
    fitted = {}
    for precision, given in answers.items():
        agreed, trajectories = labels[precision].agreed, [answer.trajectory for answer in given]
        purpose = Purpose(name, precision, here, "end", max_disagreement)
        end = fit(purpose, [answer.signals for answer in given], agreed)
        shown = dataclasses.replace(purpose, commit_rule=f"prefix:{prefix_tokens}")
        prefix = fit(shown, [answer.early for answer in given], agreed)
        fitted[precision, purpose.commit_rule] = with_early_stop(end, end, trajectories)
        fitted[precision, shown.commit_rule] = with_early_stop(prefix, end, trajectories, prefix_tokens)
    return fitted


def _write(
    release: Release,
    items: Sequence[CalibrationItem],
    labels: Mapping[int, Labels],
    fitted: Mapping[tuple[int, str], Fitted],
    cloud: CloudReference,
) -> Manifest:
    before, data = release.manifest, items_digest(items)
    calibrations = tuple(entry.calibration for entry in fitted.values())
    content = _content(items, labels, fitted, cloud)
    draft = release.path / f"new-{CALIBRATION}"
    draft.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    described = dataclasses.replace(describe_file(draft), name=CALIBRATION)
    figures = tuple(
        QualityFigure(_FIGURE, sum(entry.agreed) / len(items), bits, len(items), SEED, data, cpu_class())
        for bits, entry in labels.items()
    )
    manifest = sealed(
        dataclasses.replace(
            before,
            files=(*(entry for entry in before.files if entry.name != CALIBRATION), described),
            quality=(*(figure for figure in before.quality if figure.name != _FIGURE), *figures),
            calibrations=calibrations,
            cloud=cloud,
        )
    )
    _replace(release.path, manifest)
    return manifest


def _content(
    items: Sequence[CalibrationItem],
    labels: Mapping[int, Labels],
    fitted: Mapping[tuple[int, str], Fitted],
    cloud: CloudReference,
) -> dict[str, Any]:
    records = [
        {
            "digest": item.digest,
            "task": item.task,
            "kind": item.kind,
            "agreed": {str(bits): entry.agreed[index] for bits, entry in labels.items()},
            "score": {str(bits): entry.scores.get(index) for bits, entry in labels.items()},
            "confidence": {f"{bits} {rule}": entry.confidences[index] for (bits, rule), entry in fitted.items()},
        }
        for index, item in enumerate(items)
    ]
    return {
        "schema": 1,
        "cloud": plain(cloud),
        "n": len(items),
        "data_digest": items_digest(items),
        "question_digests": sorted(item.digest for item in items),
        "open_bar": next((entry.bar for entry in labels.values() if math.isfinite(entry.bar)), None),
        "open_bar_quantile": BAR_QUANTILE,
        "calibrations": [plain(entry.calibration) for entry in fitted.values()],
        "items": records,
    }


def _replace(folder: Path, manifest: Manifest) -> None:
    """Puts the new calibration and manifest in place: two renames, the manifest last."""
    fresh = folder / f"new-{MANIFEST_NAME}"
    fresh.write_text(write(manifest), encoding="utf-8")
    (folder / f"new-{CALIBRATION}").replace(folder / CALIBRATION)
    fresh.replace(folder / MANIFEST_NAME)


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as handle:
            digest.update(hashlib.file_digest(handle, "sha256").digest())
    return digest.hexdigest()
