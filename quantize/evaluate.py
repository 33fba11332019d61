"""Measures a release against the float32 model it was built from, and writes the figures into its manifest.

Decoders are compared on a text (`quantize.measure`), classifiers on labelled texts (`quantize.verdicts`).
Every precision is served as an edge node would serve it; a part is measured once more with the inputs of
products left in float32, because rounding those to int8 hurts some models (onnxruntime#29849).

The source is held once in float32 beside one session per precision; of logits, one chunk. Figures hold
for the text, seed and kind of CPU they name. Must not know: gates, reports, command lines.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from quantize.errors import QuantizeError
from quantize.evaluation import NAMES, Evaluation, Level, Width
from quantize.evaluation_text import LEAST_POSITIONS, SEED, demand_apart, digest, read_text, windows
from quantize.levels import FLOAT_INPUTS
from quantize.measure import CHUNK, Track, agreement, walk
from quantize.progress import Progress, Silent
from quantize.sealing import reseal
from quantize.subjects import Classifiers, ServedModel, SourceModelInFloat, served
from quantize.verdicts import LabelledText, Verdicts, judge
from quantize.verdicts import digest as items_digest
from release.folder import Release, open_release
from release.manifest import Manifest
from runtime.cpu import cpu_class

_TASK = "measuring quality"
_PROBED = 4  # one window or text in so many is measured with float inputs too


def evaluate_release(
    folder: Path,
    source: Path,
    *,
    text: str | None = None,
    calibration_text: str = "",
    items: Sequence[LabelledText] = (),
    classifiers: Classifiers | None = None,
    threads: int = 1,
    seed: int = SEED,
    least: int = LEAST_POSITIONS,
    progress: Progress | None = None,
) -> tuple[Manifest, Evaluation]:
    """Measures the release in `folder` against the model in `source`; returns its new manifest and the figures.

    A decoder is measured on `text` (None: Weir's own), which must not be the `calibration_text`, at `least`
    positions; a classifier on `items`, opened by `classifiers`. Raises QuantizeError or ReleaseError; the release
    is then as it was before.
    """
    progress = progress or Silent()
    release = open_release(folder, verify=False)
    if release.manifest.task == "classify":
        if classifiers is None or not items:
            raise QuantizeError("a classifier is measured on labelled texts: give some with --evaluation-csv")
        evaluation = _classifier(release, source, items, classifiers, threads=threads, progress=progress)
    else:
        chosen = read_text() if text is None else text
        demand_apart(chosen, calibration_text)
        if digest(chosen) == release.manifest.recipe.text_digest:
            raise QuantizeError("the release's errors were compensated on the evaluation text: give another")
        evaluation = _decoder(release, source, chosen, threads=threads, seed=seed, least=least, progress=progress)
    for warning in evaluation.warnings:
        progress.note(warning)
    kept = tuple(figure for figure in release.manifest.quality if figure.name not in NAMES)
    manifest = dataclasses.replace(release.manifest, quality=(*kept, *evaluation.figures()))
    return reseal(folder, manifest), evaluation


def _decoder(
    release: Release, source: Path, text: str, *, threads: int, seed: int, least: int, progress: Progress
) -> Evaluation:
    context = release.manifest.architecture.context_length
    stretch = windows(text, source, context=context, least=least, seed=seed)
    length, probed = len(stretch[0].inputs), stretch[::_PROBED]
    progress.start(_TASK, length * (len(stretch) + len(probed)), "steps")

    def told(positions: int) -> None:
        progress.advance(_TASK, positions)

    def sessions(level: int | None) -> Mapping[str, ServedModel]:
        return {
            _name(bits): served(release, bits, capacity=length, chunk=CHUNK, threads=threads, level=level)
            for bits in release.precisions
        }

    reference = SourceModelInFloat(source, threads)
    first, tracks = walk(reference, sessions(None), stretch, told=told)
    _, floats = walk(reference, sessions(FLOAT_INPUTS), probed, told=told)
    progress.finish(_TASK)
    widths = {
        bits: Width(
            track.kl,
            agreement(first, track),
            _level(track, floats[_name(bits)], length),
            track.kl_by_position,
            perplexity=track.perplexity,
        )
        for bits, track in ((bits, tracks[_name(bits)]) for bits in release.precisions)
    }
    return Evaluation(
        widths, length * len(stretch), seed, digest(text), cpu_class(), source_perplexity=first.perplexity
    )


def _classifier(
    release: Release,
    source: Path,
    items: Sequence[LabelledText],
    classifiers: Classifiers,
    *,
    threads: int,
    progress: Progress,
) -> Evaluation:
    probed = items[::_PROBED]
    progress.start(_TASK, len(items) + len(probed), "steps")

    def told(texts: int) -> None:
        progress.advance(_TASK, texts)

    reference = classifiers.source(source, threads)
    first, verdicts = judge(
        reference,
        {_name(bits): classifiers.release(release, bits, None, threads) for bits in release.precisions},
        items,
        told=told,
        labelling=release.manifest.labelling,
    )
    _, floats = judge(
        reference,
        {_name(bits): classifiers.release(release, bits, FLOAT_INPUTS, threads) for bits in release.precisions},
        probed,
        told=told,
        labelling=release.manifest.labelling,
    )
    progress.finish(_TASK)
    widths = {
        bits: Width(
            float(verdict.kl_by_position.mean()),
            float((verdict.tops == first.tops).mean()),
            _level(verdict, floats[_name(bits)], 1),
            verdict.kl_by_position,
            accuracy=verdict.accuracy,
        )
        for bits, verdict in ((bits, verdicts[_name(bits)]) for bits in release.precisions)
    }
    return Evaluation(widths, len(items), SEED, items_digest(items), cpu_class(), source_accuracy=first.accuracy)


def _level(whole: Track | Verdicts, floats: Track | Verdicts, length: int) -> Level:
    """`floats` covers one in _PROBED of the windows of `length` that `whole` covers."""
    kl = whole.kl_by_position.reshape(-1, length)[::_PROBED]
    tops = whole.tops.reshape(-1, length)[::_PROBED].reshape(-1)
    return Level(
        kl=float(kl.mean(dtype=np.float64)),
        kl_float_inputs=float(floats.kl_by_position.mean(dtype=np.float64)),
        flips=float((tops != floats.tops).mean()),
        items=tops.size,
    )


def _name(bits: int) -> str:
    return f"the release at {bits} bits"
