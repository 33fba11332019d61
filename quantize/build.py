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
from pathlib import Path

from quantize.architecture import BLOCK_SIZE, SourceModel, read_json, read_source
from quantize.errors import QuantizeError
from quantize.export import Export, export_graph
from quantize.exported import Exported, read_exported
from quantize.graph import ACCURACY_LEVEL, EMBEDDING, rewrite
from quantize.nest import Nester, RoundToNearest
from quantize.progress import Progress, Silent
from quantize.release_weights import ReleaseWeights
from quantize.room import publish, room
from release.folder import describe_file
from release.manifest import (
    CHAT_TEMPLATE,
    MANIFEST_NAME,
    TOKENIZER,
    TOKENIZER_CONFIG,
    CloudReference,
    Manifest,
    Recipe,
    check_identity,
    graph_name,
    sealed,
    write,
)
from release.planes import Floats

PRECISIONS = (4, 8)
NESTED_HEAD = 4
_TOOLS = ("numpy", "onnx", "onnxruntime", "onnxruntime-genai", "torch", "transformers")
_ROTARY = ("cos_cache", "sin_cache")


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
    head_bits: int = NESTED_HEAD,
) -> Manifest:
    """Builds `out` from the model in `source`; returns its manifest, without calibrations.

    `cloud_reference` names the cloud model it will be calibrated against. `replace` allows an
    existing release at `out` to give way. `export` makes the graph. `head_bits` is 4 for a head and embedding
    that are nested like the rest, 8 for ones that have 8 bits in both precisions. Raises QuantizeError; `out` is
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
        builder = _Builder(model, exported, made, nester or RoundToNearest(), progress, head_bits=head_bits)
        manifest = builder.build(name, version, CloudReference(cloud_reference, cloud_digest))
        publish(made, out, work)
    return manifest


class _Builder:
    """One build: from an exported graph to a folder of files."""

    def __init__(
        self, source: SourceModel, exported: Exported, out: Path, nester: Nester, progress: Progress, *, head_bits: int
    ) -> None:
        self._source, self._exported, self._out = source, exported, out
        self._nester, self._progress = nester, progress
        self._head_bits = head_bits

    def build(self, name: str, version: str, cloud: CloudReference) -> Manifest:
        weights = self._weights()
        architecture = self._source.architecture
        for bits in PRECISIONS:
            graph = rewrite(
                self._exported, architecture, weights.tensors, weights.matrices, bits=bits, block_size=BLOCK_SIZE
            )
            (self._out / graph_name(bits)).write_bytes(graph)
        self._tokenizer()
        source_digest = self._source_digest()
        nester = self._nester
        recipe = Recipe(
            nester.method, BLOCK_SIZE, self._head_bits, ACCURACY_LEVEL, source_digest, _tools(), nester.text_digest
        )
        manifest = Manifest(
            name=name,
            version=version,
            architecture=architecture,
            files=tuple(describe_file(path) for path in sorted(self._out.iterdir())),
            tensors=weights.tensors,
            matrices=tuple(weights.matrices),
            precisions=PRECISIONS,
            tokenizer_digest=hashlib.sha256((self._out / TOKENIZER).read_bytes()).hexdigest(),
            eos_token_ids=self._source.eos_token_ids,
            cloud=cloud,
            recipe=recipe,
            quality=weights.errors(source_digest),
        )
        manifest = sealed(manifest)
        (self._out / MANIFEST_NAME).write_text(write(manifest), encoding="utf-8")
        return manifest

    def _weights(self) -> ReleaseWeights:
        task = "quantizing weights"
        self._progress.start(task, len(self._exported.linears) + 1, "steps")
        with ReleaseWeights(self._out, self._nester, BLOCK_SIZE) as weights:
            for name in self._exported.others:
                weights.keep(name, self._kept(name))
            for linear in self._exported.linears:
                weights.nest(linear.name, self._exported.matrix(linear))
                self._progress.advance(task, 1)
            self._ends(weights)
            self._progress.advance(task, 1)
        self._progress.finish(task)
        return weights

    def _kept(self, name: str) -> Floats:
        values = self._exported.values(name)
        # Rotary tables have a row per position: those beyond the release's context are left out.
        return values[: self._source.architecture.context_length] if name.startswith(_ROTARY) else values

    def _ends(self, weights: ReleaseWeights) -> None:
        """The head and the embedding, one matrix or two, after the layers, whose outputs a nester may know then."""
        head, embedding = self._exported.head, self._exported.embedding
        write = weights.nest if self._head_bits == NESTED_HEAD else weights.eight_bit
        write(head.name, self._exported.matrix(head), "" if embedding.weight else EMBEDDING)
        if embedding.weight:
            table = self._exported.values(embedding.weight)
            if self._head_bits == NESTED_HEAD:
                weights.nest(EMBEDDING, table, EMBEDDING)
            else:
                weights.eight_bit_table(EMBEDDING, table)

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


def _tools() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in _TOOLS}
