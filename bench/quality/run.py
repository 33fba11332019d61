"""`weir bench quality`: quantized models against their float source, on text of another kind than they were made on.

kl, top1      of int8_rtn, nested8, int4_rtn, nested4: KL(float32 ‖ quantized) in nats, and the share of
              positions with the same likeliest token; both over the same positions
perplexity    of all of them and of the float32 source; for an encoder: accuracy
bytes.base       what a 4-bit node fetches of the nested release: everything but the residual and the 8-bit graph
bytes.residual   what the same node fetches on top to become 8-bit
bytes.int4/int8  what it would fetch of releases to nearest that were published apart, one per precision
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.machine import machine, versions
from bench.quality.decoders import compare_decoders, decoder_rivals
from bench.quality.encoders import compare_encoders, encoder_rivals, intents
from bench.quality.errors import MeasurementError
from bench.quality.rivals import Rivals
from bench.quality.text import evaluation_text
from quantize.architecture import read_json
from quantize.encoder.architecture import FAMILIES as ENCODERS
from quantize.evaluation_text import SEED
from quantize.export import Export, export_graph
from quantize.progress import Progress
from quantize.sources.resolve import Source, resolve
from quantize.verdicts import digest as items_digest
from release.folder import Release
from release.manifest import MANIFEST_NAME, PLANE_LO, graph_name

MODELS: Mapping[str, str] = {
    "smollm2": "smollm2-135m-instruct",
    "qwen": "qwen2.5-coder-0.5b-instruct",
    "minilm": "minilm-l6",
}
_PACKAGES = ("numpy", "onnx", "onnxruntime", "onnxruntime-genai", "scikit-learn", "torch", "transformers")
_CLINC = "clinc150 test texts, head fitted on its training texts"


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
    """Builds what is missing, measures, and returns the document to print. `export` makes decoders' graphs."""
    source = resolve(MODELS.get(model, model), progress)
    if read_json(source.folder / "config.json").get("model_type") in ENCODERS:
        if rotated:
            raise MeasurementError(
                f"{source.name} is an encoder, whose LayerNorms no rotation leaves alone: no --rotated"
            )
        rivals, found = _encoder(source, data, threads=threads, seed=seed, progress=progress)
    else:
        text = evaluation_text(data, seed)
        progress.note(f"evaluating on {text.name}")
        rivals, folder = decoder_rivals(
            source, rotated=rotated, seed=seed, threads=threads, progress=progress, export=export
        )
        found = compare_decoders(rivals, folder, text, threads=threads, seed=seed, progress=progress)
        found |= {"data": text.name, "data_digest": text.digest}
    recipe = rivals.nested.manifest.recipe
    return {
        "model": source.name,
        "rotated": rotated,
        **found,
        "bytes": fetched(rivals),
        "method": recipe.method,
        "calibration_text_digest": recipe.text_digest,
        "source_sha256": source.sha256,
        "seed": seed,
        "versions": versions(_PACKAGES),
        "machine": machine(),
    }


def _encoder(
    source: Source, data: Path | None, *, threads: int, seed: int, progress: Progress
) -> tuple[Rivals, dict[str, Any]]:
    fitted, tested = intents(data, seed)
    progress.note(f"evaluating on {_CLINC}")
    rivals = encoder_rivals(source, fitted, threads=threads, progress=progress)
    found = compare_encoders(rivals, source.folder, tested, threads=threads, progress=progress)
    return rivals, found | {"data": _CLINC, "data_digest": items_digest(tested)}


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
