"""A model folder becomes a release folder, or nothing does.

Everything is written to a hidden folder beside the destination and renamed at the end, so that a
failure, a full disk or an interrupt leaves no half-built release. Steps: read the config (refusals
cost nothing), export the graph, nest the weights one by one, write both graphs, seal the manifest.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quantize.architecture import BLOCK_SIZE, SourceModel, read_json, read_source
from quantize.errors import QuantizeError
from quantize.export import Export, export_graph
from quantize.exported import Exported, Linear, read_exported
from quantize.graph import ACCURACY_LEVEL, EMBEDDING, HEAD_BITS, rewrite
from quantize.layout import WeightFile
from quantize.nest import Nester, RoundToNearest, round_to_nearest
from quantize.progress import Progress, Silent
from quantize.room import publish, room
from release.folder import describe_file
from release.manifest import (
    BASE,
    CHAT_TEMPLATE,
    MANIFEST_NAME,
    PLANE_HI,
    PLANE_LO,
    TOKENIZER,
    TOKENIZER_CONFIG,
    CloudReference,
    Manifest,
    Matrix,
    QualityFigure,
    Recipe,
    Tensor,
    check_identity,
    graph_name,
    sealed,
    write,
)
from release.planes import Floats, blocks, compose, dequantize, pack4, packz

PRECISIONS = (4, 8)
_TOOLS = ("numpy", "onnx", "onnxruntime", "onnxruntime-genai", "torch", "transformers")
_ROTARY = ("cos_cache", "sin_cache")
_HEAD_ROWS = 16_384  # the head is quantized in pieces: it is by far the largest matrix


@dataclass(slots=True)
class _Error:
    """Sums of squared weight errors, for the manifest's figures."""

    weight: float = 0.0
    four: float = 0.0
    eight: float = 0.0
    count: int = 0


def build_release(
    source: Path,
    out: Path,
    *,
    name: str,
    version: str = "1.0.0",
    cloud_reference: str = "",
    cloud_digest: str = "",
    nester: Nester | None = None,
    progress: Progress | None = None,
    threads: int = 1,
    replace: bool = False,
    export: Export = export_graph,
) -> Manifest:
    """Builds `out` from the model in `source`; returns its manifest, without calibrations.

    `cloud_reference` names the cloud model it will be calibrated against. `replace` allows an
    existing release at `out` to give way. `export` makes the graph. Raises QuantizeError; `out` is
    then as it was before.
    """
    progress = progress or Silent()
    try:
        check_identity(name, version)
    except ValueError as error:
        raise QuantizeError(str(error)) from error
    model = read_source(source)
    if out.exists() and not (replace and (out / MANIFEST_NAME).is_file()):
        raise QuantizeError(f"{out} exists already: choose another folder or remove it")
    out.parent.mkdir(parents=True, exist_ok=True)
    with room(out) as work:
        progress.start("exporting the graph", None, "steps")
        exported = read_exported(export(model, work, threads=threads))
        progress.finish("exporting the graph")
        made = work / "release"
        made.mkdir()
        builder = _Builder(model, exported, made, nester or RoundToNearest(), progress)
        manifest = builder.build(name, version, CloudReference(cloud_reference, cloud_digest))
        publish(made, out, work)
    return manifest


class _Builder:
    """One build: from an exported graph to a folder of files."""

    def __init__(self, source: SourceModel, exported: Exported, out: Path, nester: Nester, progress: Progress) -> None:
        self._source, self._exported, self._out = source, exported, out
        self._nester, self._progress = nester, progress
        self._matrices: list[Matrix] = []
        self._error = _Error()

    def build(self, name: str, version: str, cloud: CloudReference) -> Manifest:
        tensors = self._weights()
        architecture = self._source.architecture
        for bits in PRECISIONS:
            graph = rewrite(self._exported, architecture, tensors, bits, BLOCK_SIZE)
            (self._out / graph_name(bits)).write_bytes(graph)
        self._tokenizer()
        source_digest = self._source_digest()
        nester = self._nester
        recipe = Recipe(
            nester.method, BLOCK_SIZE, HEAD_BITS, ACCURACY_LEVEL, source_digest, _tools(), nester.text_digest
        )
        manifest = Manifest(
            name=name,
            version=version,
            architecture=architecture,
            files=tuple(describe_file(path) for path in sorted(self._out.iterdir())),
            tensors=tuple(tensors),
            matrices=tuple(self._matrices),
            precisions=PRECISIONS,
            tokenizer_digest=hashlib.sha256((self._out / TOKENIZER).read_bytes()).hexdigest(),
            eos_token_ids=self._source.eos_token_ids,
            cloud=cloud,
            recipe=recipe,
            quality=self._quality(source_digest),
        )
        manifest = sealed(manifest)
        (self._out / MANIFEST_NAME).write_text(write(manifest), encoding="utf-8")
        return manifest

    def _weights(self) -> list[Tensor]:
        task = "quantizing weights"
        self._progress.start(task, len(self._exported.linears) + 1, "steps")
        with (
            WeightFile(self._out / BASE) as base,
            WeightFile(self._out / PLANE_HI) as hi,
            WeightFile(self._out / PLANE_LO) as lo,
        ):
            for name in self._exported.others:
                base.add(name, self._kept(name))
            self._eight_bit(base)
            self._progress.advance(task, 1)
            for linear in self._exported.linears:
                self._nest(linear, base, hi, lo)
                self._progress.advance(task, 1)
        self._progress.finish(task)
        return [*base.tensors, *hi.tensors, *lo.tensors]

    def _kept(self, name: str) -> Floats:
        values = self._exported.values(name)
        # Rotary tables have a row per position: those beyond the release's context are left out.
        return values[: self._source.architecture.context_length] if name.startswith(_ROTARY) else values

    def _eight_bit(self, base: WeightFile) -> None:
        """The head and the embedding, one matrix or two, at 8 bits."""
        head, embedding = self._exported.head, self._exported.embedding
        codes = self._rounded(base, head.name, self._exported.values(head.weight).T, flat=False)
        if embedding.weight is None:
            base.alias(f"{EMBEDDING}.q", codes, (head.rows, head.columns))
        else:
            self._rounded(base, EMBEDDING, self._exported.values(embedding.weight), flat=True)

    def _rounded(self, base: WeightFile, name: str, weight: Floats, *, flat: bool) -> Tensor:
        """Writes [N, K] at 8 bits; codes are kept as [N, K] where `flat`, else as [N, nb, bs]."""
        pieces = [
            round_to_nearest(np.ascontiguousarray(weight[start : start + _HEAD_ROWS]), BLOCK_SIZE, HEAD_BITS)
            for start in range(0, weight.shape[0], _HEAD_ROWS)
        ]
        codes = np.concatenate([piece.codes for piece in pieces])
        place = base.add(f"{name}.q", codes.reshape(weight.shape) if flat else codes)
        base.add(f"{name}.s", np.concatenate([piece.scales for piece in pieces]).astype(np.float16))
        base.add(f"{name}.z", np.concatenate([piece.zeros for piece in pieces]))
        return place

    def _nest(self, linear: Linear, base: WeightFile, hi: WeightFile, lo: WeightFile) -> None:
        weight = self._exported.matrix(linear)
        nested = self._nester.nest(linear.name, weight, BLOCK_SIZE)
        four, steps = nested.four, nested.steps
        uniform = int(steps.flat[0]) if (steps == steps.flat[0]).all() else 0
        hi.add(f"{linear.name}.q", pack4(four.codes))
        lo.add(f"{linear.name}.r", pack4(nested.rest))
        if not uniform:
            lo.add(f"{linear.name}.c", packz(steps - np.uint8(1)))
        base.add(f"{linear.name}.s", four.scales.astype(np.float16))
        base.add(f"{linear.name}.z", packz(four.zeros))
        self._matrices.append(Matrix(linear.name, linear.rows, linear.columns, BLOCK_SIZE, uniform))
        source = blocks(weight, BLOCK_SIZE)
        eight = compose(four.codes, nested.rest, four.scales, four.zeros, steps)
        self._error.weight += float(np.square(source).sum(dtype=np.float64))
        self._error.four += float(
            np.square(dequantize(four.codes, four.scales, four.zeros) - source).sum(dtype=np.float64)
        )
        self._error.eight += float(np.square(dequantize(*eight) - source).sum(dtype=np.float64))
        self._error.count += weight.size

    def _tokenizer(self) -> None:
        source = self._source.path
        shutil.copyfile(source / TOKENIZER, self._out / TOKENIZER)
        settings = read_json(source / TOKENIZER_CONFIG) if (source / TOKENIZER_CONFIG).is_file() else {}
        template = settings.pop("chat_template", None)  # older folders keep it here
        if (source / CHAT_TEMPLATE).is_file():
            template = (source / CHAT_TEMPLATE).read_text(encoding="utf-8")
        if isinstance(template, str):
            (self._out / CHAT_TEMPLATE).write_text(template, encoding="utf-8")
        (self._out / TOKENIZER_CONFIG).write_text(json.dumps(settings, indent=1), encoding="utf-8")

    def _source_digest(self) -> str:
        digest = hashlib.sha256()
        for path in self._source.weight_files:
            with path.open("rb") as handle:
                digest.update(hashlib.file_digest(handle, "sha256").digest())
        return digest.hexdigest()

    def _quality(self, source_digest: str) -> tuple[QualityFigure, ...]:
        error, total = self._error, max(self._error.weight, 1e-30)
        return tuple(
            QualityFigure("relative_weight_error", (part / total) ** 0.5, bits, error.count, 0, source_digest, "any")
            for bits, part in ((4, error.four), (8, error.eight))
        )


def _tools() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in _TOOLS}
