"""A folder with a ready-made ONNX classifier becomes a release, or nothing does."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from quantize.architecture import BLOCK_SIZE
from quantize.classifier.graph import Plan, plan, product_weight, rewrite_classifier, values
from quantize.classifier.source import ReadyMade, read_ready_made
from quantize.classifier.subjects import InFloat
from quantize.encoder.build import PRECISIONS, digest_of, plain_tokenizer
from quantize.errors import QuantizeError
from quantize.graph import ACCURACY_LEVEL, HEAD_BITS
from quantize.nest import Nester, RoundToNearest
from quantize.progress import Progress, Silent
from quantize.release_weights import ReleaseWeights
from quantize.room import publish, room
from release.folder import describe_file
from release.manifest import (
    MANIFEST_NAME,
    CloudReference,
    Manifest,
    Recipe,
    check_identity,
    graph_name,
    sealed,
    write,
)
from runtime.ort.classify import CLASSIFY
from runtime.tokenizer import Tokenizer

_TOOLS = ("numpy", "onnx", "onnxruntime")


def build_ready_made(
    source: Path,
    out: Path,
    *,
    name: str,
    version: str = "1.0.0",
    nester: Nester | None = None,
    progress: Progress | None = None,
    threads: int = 1,
    replace: bool = False,
) -> Manifest:
    """Builds `out` from the classifier in `source`; returns its manifest.

    The graph is tried on a text first. Raises QuantizeError; `out` is then as it was before.
    """
    progress = progress or Silent()
    try:
        check_identity(name, version)
    except ValueError as error:
        raise QuantizeError(str(error)) from error
    found = read_ready_made(source)
    if out.exists() and not (replace and (out / MANIFEST_NAME).is_file()):
        raise QuantizeError(f"{out} exists already: choose another folder or remove it")
    out.parent.mkdir(parents=True, exist_ok=True)
    with room(out) as work:
        made = work / "release"
        made.mkdir()
        plain_tokenizer(found.path, made)
        tokenizer = Tokenizer.load(made)
        InFloat(found, tokenizer, threads).try_out()
        nester = nester or RoundToNearest(search=True)
        manifest = _build(found, made, nester, progress, name=name, version=version, tokenizer=tokenizer)
        publish(made, out, work)
    return manifest


def _build(
    found: ReadyMade, out: Path, nester: Nester, progress: Progress, *, name: str, version: str, tokenizer: Tokenizer
) -> Manifest:
    chosen = plan(found)
    if not chosen.products:
        raise QuantizeError(f"{found.graph} multiplies by no constant weight: there is nothing to quantize")
    weights = _weights(found, chosen, out, nester, progress)
    for bits in PRECISIONS:
        graph = rewrite_classifier(found, chosen, weights.tensors, weights.matrices, bits)
        (out / graph_name(bits)).write_bytes(graph)
    digest = digest_of(found.files)
    tools = {tool: importlib.metadata.version(tool) for tool in _TOOLS}
    manifest = sealed(
        Manifest(
            name=name,
            version=version,
            architecture=found.architecture,
            files=tuple(describe_file(path) for path in sorted(out.iterdir())),
            tensors=weights.tensors,
            matrices=tuple(weights.matrices),
            precisions=PRECISIONS,
            tokenizer_digest=tokenizer.digest,
            eos_token_ids=(),
            cloud=CloudReference(""),
            recipe=Recipe(nester.method, BLOCK_SIZE, HEAD_BITS, ACCURACY_LEVEL, digest, tools, nester.text_digest),
            quality=weights.errors(digest),
            labels=found.labels,
            task=CLASSIFY,
            labelling=found.labelling,
        )
    )
    (out / MANIFEST_NAME).write_text(write(manifest), encoding="utf-8")
    return manifest


def _weights(found: ReadyMade, chosen: Plan, out: Path, nester: Nester, progress: Progress) -> ReleaseWeights:
    task = "quantizing weights"
    progress.start(task, len(chosen.products) + 1, "steps")
    with ReleaseWeights(out, nester, BLOCK_SIZE) as weights:
        for name in chosen.outside:
            weights.keep(name, values(found, name))
        for name in chosen.tables:
            weights.eight_bit_table(name, values(found, name))
        progress.advance(task, 1)
        for name in chosen.products:
            weights.nest(name, product_weight(found, name))
            progress.advance(task, 1)
    progress.finish(task)
    return weights
