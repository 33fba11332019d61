"""`weir bench quality`: quantized models against their float source, on text of another kind than they were made on.

kl, top1      of int8_rtn, nested8, int4_rtn, nested4: KL(float32 ‖ quantized) in nats, and the share of
              positions with the same likeliest token; both over the same positions
perplexity    of all of them and of the float32 source
bytes.base       what a 4-bit node fetches of the nested release: everything but the residual and the 8-bit graph
bytes.residual   what the same node fetches on top to become 8-bit
bytes.int4/int8  what it would fetch of releases to nearest that were published apart, one per precision
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.machine import machine, versions
from bench.quality.rivals import Rivals, prepare
from bench.quality.text import EvaluationText, evaluation_text
from quantize.evaluation_text import LEAST_POSITIONS, SEED, windows
from quantize.export import Export, export_graph
from quantize.measure import CHUNK, Track, agreement, walk
from quantize.progress import Progress
from quantize.sources.resolve import resolve
from quantize.subjects import SourceModelInFloat, served
from release.folder import Release
from release.manifest import MANIFEST_NAME, PLANE_LO, graph_name

MODELS: Mapping[str, str] = {
    "smollm2": "smollm2-135m-instruct",
    "qwen": "qwen2.5-coder-0.5b-instruct",
    "minilm": "minilm-l6",
}
_PACKAGES = ("numpy", "onnx", "onnxruntime", "onnxruntime-genai", "torch", "transformers")
_TASK = "measuring quality"


def run(
    model: str,
    data: Path | None,
    *,
    rotated: bool,
    threads: int,
    progress: Progress,
    seed: int = SEED,
    export: Export = export_graph,
) -> dict[str, Any]:
    """Builds what is missing, measures, and returns the document to print. `export` makes the graphs."""
    text = evaluation_text(data, seed)
    progress.note(f"evaluating on {text.name}")
    source = resolve(MODELS.get(model, model), progress)
    rivals = prepare(source, rotated=rotated, seed=seed, threads=threads, progress=progress, export=export)
    first, tracks, positions = _measure(rivals, text, threads=threads, seed=seed, progress=progress)
    return {
        "model": source.name,
        "rotated": rotated,
        "kl": {name: track.kl for name, track in tracks.items()},
        "top1": {name: agreement(first, track) for name, track in tracks.items()},
        "perplexity": {"float32": first.perplexity, **{name: track.perplexity for name, track in tracks.items()}},
        "bytes": fetched(rivals),
        "positions": positions,
        "method": rivals.nested.manifest.recipe.method,
        "data": text.name,
        "data_digest": text.digest,
        "calibration_text_digest": rivals.nested.manifest.recipe.text_digest,
        "source_sha256": source.sha256,
        "seed": seed,
        "versions": versions(_PACKAGES),
        "machine": machine(),
    }


def _measure(
    rivals: Rivals, text: EvaluationText, *, threads: int, seed: int, progress: Progress
) -> tuple[Track, dict[str, Track], int]:
    context = rivals.nested.manifest.architecture.context_length
    stretch = windows(text.text, rivals.source, context=context, least=LEAST_POSITIONS, seed=seed)
    length = len(stretch[0].inputs)
    subjects = {
        name: served(release, bits, capacity=length, chunk=CHUNK, threads=threads)
        for name, release, bits in (
            ("int8_rtn", rivals.eight, 8),
            ("nested8", rivals.nested, 8),
            ("int4_rtn", rivals.rounded, 4),
            ("nested4", rivals.nested, 4),
        )
    }
    progress.start(_TASK, length * len(stretch), "steps")
    first, tracks = walk(
        SourceModelInFloat(rivals.source, threads), subjects, stretch, told=lambda done: progress.advance(_TASK, done)
    )
    progress.finish(_TASK)
    return first, tracks, length * len(stretch)


def fetched(rivals: Rivals) -> dict[str, int]:
    """Bytes over the wire; see the module's text. Manifests count, since they are fetched."""
    residual = (PLANE_LO, graph_name(8))
    return {
        "base": _bytes(rivals.nested, without=residual),
        "residual": sum(rivals.nested.manifest.file(name).bytes for name in residual),
        "int4": _bytes(rivals.rounded, without=residual),
        "int8": _bytes(rivals.eight),
    }


def _bytes(release: Release, without: tuple[str, ...] = ()) -> int:
    files = sum(entry.bytes for entry in release.manifest.files if entry.name not in without)
    return files + (release.path / MANIFEST_NAME).stat().st_size
