"""Rivals of a model that writes text, compared by its next-token distributions."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

from bench.quality.rivals import SOURCE, Build, Rivals, kept
from bench.quality.rotate import rotate_model
from bench.quality.text import EvaluationText
from quantize.architecture import SourceModel, read_source
from quantize.build import build_release
from quantize.calibration_text import read_text
from quantize.compensate import Compensating
from quantize.evaluation_text import LEAST_POSITIONS, windows
from quantize.export import Export, export_graph
from quantize.measure import CHUNK, agreement, walk
from quantize.nest import Nester
from quantize.progress import Progress
from quantize.sources.resolve import Source
from quantize.subjects import SourceModelInFloat, served

_TASK = "measuring quality"


def decoder_rivals(
    source: Source, *, rotated: bool, seed: int, threads: int, progress: Progress, export: Export = export_graph
) -> tuple[Rivals, Path]:
    """The rivals made from `source`, or from its rotated twin, and the float32 folder they were made from."""
    recipe = {
        "source": source.sha256,
        "rotated": seed if rotated else None,
        "text": hashlib.sha256(read_text().encode()).hexdigest(),
    }

    def prepare(draft: Path) -> Build:
        folder = source.folder
        if rotated:
            folder = draft / SOURCE
            rotate_model(source.folder, folder, seed=seed)
        return _build(folder, source.name.lower(), threads=threads, progress=progress, export=export)

    rivals = kept(f"{source.name}{'-rotated' if rotated else ''}", recipe, prepare, progress)
    return rivals, rivals.folder / SOURCE if rotated else source.folder


def _build(folder: Path, name: str, *, threads: int, progress: Progress, export: Export) -> Build:
    graphs: list[Path] = []

    def release(out: Path, nester: Nester | None) -> None:
        exported = out.parent / "exported"

        def once(source: SourceModel, work: Path, *, threads: int) -> Path:  # noqa: ARG001
            if not graphs:
                exported.mkdir()
                graphs.append(export(source, exported, threads=threads))
            return graphs[0]

        best = nester or Compensating(read_source(folder), read_text(), threads=threads, progress=progress)
        build_release(folder, out, name=name, nester=best, progress=progress, threads=threads, export=once)
        if nester is None:
            shutil.rmtree(exported)  # the last of the builds

    return Build(release)


def compare_decoders(
    rivals: Rivals, source: Path, text: EvaluationText, *, threads: int, seed: int, progress: Progress
) -> dict[str, Any]:
    """The figures of all rivals on the same positions of `text`."""
    context = rivals.nested.manifest.architecture.context_length
    stretch = windows(text.text, source, context=context, least=LEAST_POSITIONS, seed=seed)
    length = len(stretch[0].inputs)
    subjects = {
        name: served(release, bits, capacity=length, chunk=CHUNK, threads=threads)
        for name, release, bits in rivals.named()
    }
    progress.start(_TASK, length * len(stretch), "steps")
    first, tracks = walk(
        SourceModelInFloat(source, threads), subjects, stretch, told=lambda done: progress.advance(_TASK, done)
    )
    progress.finish(_TASK)
    return {
        "kl": {name: track.kl for name, track in tracks.items()},
        "top1": {name: agreement(first, track) for name, track in tracks.items()},
        "perplexity": {"float32": first.perplexity, **{name: track.perplexity for name, track in tracks.items()}},
        "positions": length * len(stretch),
    }
