"""A text encoder and labelled texts become a classifier's release, or nothing does.

Steps: read the config and the texts (refusals cost nothing), fit a head on the float encoder's features of
the texts that are not held out, nest the encoder's matrices, write both graphs, seal the manifest.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quantize.architecture import BLOCK_SIZE
from quantize.encoder.architecture import Encoder, read_encoder
from quantize.encoder.compensate import CompensatingEncoder
from quantize.encoder.floats import FloatEncoder
from quantize.encoder.graph import EMBEDDING, FIRST_NORM, HEAD, POSITIONS, classifier_graph, layer_name
from quantize.encoder.head import SEED, Head, check, fit, split
from quantize.encoder.parameters import Parameters
from quantize.errors import QuantizeError
from quantize.graph import ACCURACY_LEVEL, HEAD_BITS
from quantize.nest import Nester, RoundToNearest
from quantize.progress import Progress, Silent
from quantize.release_weights import ReleaseWeights
from quantize.room import publish, room
from quantize.verdicts import Answers, LabelledText, digest, read_csv, several
from release.folder import describe_file
from release.manifest import (
    MANIFEST_NAME,
    TOKENIZER,
    TOKENIZER_CONFIG,
    CloudReference,
    Labelling,
    Manifest,
    QualityFigure,
    Recipe,
    check_identity,
    graph_name,
    sealed,
    write,
)
from release.planes import Floats
from runtime.cpu import cpu_class
from runtime.ort.classify import CLASSIFY, shortened
from runtime.tokenizer import Tokenizer

PRECISIONS = (4, 8)
HELD_OUT_ACCURACY = "held_out_accuracy"
FLOAT_BITS = 32
_TOOLS = ("numpy", "onnx", "onnxruntime", "scikit-learn", "torch", "transformers")

# What makes a nester for a loaded encoder, once the texts it may look at are known.
MakeNester = Callable[[FloatEncoder, Sequence[str], Callable[[str], list[int]], Progress, int], Nester]


def rounding(*_: object) -> Nester:
    """Rounds to nearest."""
    return RoundToNearest()


def compensating(
    encoder: FloatEncoder, texts: Sequence[str], encode: Callable[[str], list[int]], progress: Progress, threads: int
) -> Nester:
    """Compensates errors on the texts that the head is fitted on."""
    return CompensatingEncoder(encoder, texts, encode, progress, threads=threads)


def build_classifier(
    source: Path,
    out: Path,
    *,
    name: str,
    csv: Path,
    version: str = "1.0.0",
    cloud_reference: str = "",
    cloud_digest: str = "",
    nester: MakeNester = compensating,
    progress: Progress | None = None,
    threads: int = 1,
    replace: bool = False,
    seed: int = SEED,
    layers: int | None = None,
) -> Manifest:
    """Builds `out` from the encoder in `source` and the labelled texts of `csv`; returns its manifest.

    A tenth of the texts is held out (`quantize.encoder.head.split`); the manifest says how the float classifier
    does on them. `layers` takes the encoder's first so many alone, for an edge whose upstream has all of them. Raises
    QuantizeError; `out` is then as it was before.
    """
    progress = progress or Silent()
    try:
        check_identity(name, version)
    except ValueError as error:
        raise QuantizeError(str(error)) from error
    encoder, items = shallow(read_encoder(source), layers), read_csv(csv)
    check(items)
    if out.exists() and not (replace and (out / MANIFEST_NAME).is_file()):
        raise QuantizeError(f"{out} exists already: choose another folder or remove it")
    out.parent.mkdir(parents=True, exist_ok=True)
    with room(out) as work:
        made = work / "release"
        made.mkdir()
        builder = _Builder(encoder, items, made, nester, progress, threads, seed)
        manifest = builder.build(name, version, CloudReference(cloud_reference, cloud_digest))
        publish(made, out, work)
    return manifest


def shallow(encoder: Encoder, layers: int | None) -> Encoder:
    """The encoder with its first layers alone. Raises QuantizeError where it has not so many."""
    if layers is None:
        return encoder
    shape = encoder.architecture
    if not 1 <= layers <= shape.layers:
        raise QuantizeError(f"layers is {layers}; {encoder.path} has {shape.layers}")
    return dataclasses.replace(encoder, architecture=dataclasses.replace(shape, layers=layers))


def plain_tokenizer(source: Path, out: Path) -> None:
    """Copies the tokenizer without the padding and truncation that some models' files ask for.

    Whoever batches texts pads them, and to no more than they need.
    """
    document = json.loads((source / TOKENIZER).read_text(encoding="utf-8"))
    document["padding"], document["truncation"] = None, None
    (out / TOKENIZER).write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    if (source / TOKENIZER_CONFIG).is_file():
        shutil.copyfile(source / TOKENIZER_CONFIG, out / TOKENIZER_CONFIG)
    else:
        (out / TOKENIZER_CONFIG).write_text("{}", encoding="utf-8")


@dataclass(slots=True)
class _Builder:
    """One build: from an encoder and texts to a folder of files."""

    _encoder: Encoder
    _items: Sequence[LabelledText]
    _out: Path
    _make_nester: MakeNester
    _progress: Progress
    _threads: int
    _seed: int

    def build(self, name: str, version: str, cloud: CloudReference) -> Manifest:
        plain_tokenizer(self._encoder.path, self._out)
        tokenizer, longest = Tokenizer.load(self._out), self._encoder.architecture.context_length

        def encode(text: str) -> list[int]:
            return shortened(tokenizer.encode(text), longest)

        floats = FloatEncoder(self._encoder.path, self._threads, self._encoder.architecture.layers)
        fitted, held_out = split(self._items, self._seed)
        head, accuracy = self._fit(floats, fitted, held_out, encode)
        nester = self._make_nester(floats, [item.text for item in fitted], encode, self._progress, self._threads)
        weights = self._weights(head, nester)
        for bits in PRECISIONS:
            graph = classifier_graph(self._encoder, weights.tensors, weights.matrices, len(head.labels), bits)
            (self._out / graph_name(bits)).write_bytes(graph)
        source_digest = digest_of(self._encoder.weight_files)
        recipe = Recipe(
            nester.method, BLOCK_SIZE, HEAD_BITS, ACCURACY_LEVEL, source_digest, _tools(), nester.text_digest
        )
        manifest = sealed(
            Manifest(
                name=name,
                version=version,
                architecture=self._encoder.architecture,
                files=tuple(describe_file(path) for path in sorted(self._out.iterdir())),
                tensors=weights.tensors,
                matrices=tuple(weights.matrices),
                precisions=PRECISIONS,
                tokenizer_digest=tokenizer.digest,
                eos_token_ids=(),
                cloud=cloud,
                recipe=recipe,
                quality=(*weights.errors(source_digest), *self._held_out(accuracy, held_out)),
                labels=head.labels,
                task=CLASSIFY,
                labelling=Labelling(multi_label=several(self._items), truncates=True),  # texts are cut for the fit too
            )
        )
        (self._out / MANIFEST_NAME).write_text(write(manifest), encoding="utf-8")
        return manifest

    def _fit(
        self,
        floats: FloatEncoder,
        fitted: Sequence[LabelledText],
        held_out: Sequence[LabelledText],
        encode: Callable[[str], list[int]],
    ) -> tuple[Head, float | None]:
        task = "reading labelled texts"
        self._progress.start(task, len(fitted) + len(held_out), "steps")

        def features(items: Sequence[LabelledText]) -> Floats:
            rows = [encode(item.text) for item in items]
            return floats.features(rows, lambda count: self._progress.advance(task, count))

        known = features(fitted)
        unseen = features(held_out) if held_out else None
        self._progress.finish(task)
        self._progress.start("fitting the head", None, "steps")
        head = fit(known, fitted, self._seed)
        self._progress.finish("fitting the head")
        if unseen is None:
            return head, None
        rule = Answers(head.labels, Labelling(multi_label=several(self._items)))
        answers = map(rule.answer, head.logits(unseen))
        return head, float(np.mean([answer == item.label for answer, item in zip(answers, held_out, strict=True)]))

    def _weights(self, head: Head, nester: Nester) -> ReleaseWeights:
        task, layers = "quantizing weights", self._encoder.architecture.layers
        self._progress.start(task, layers + 1, "steps")
        with (
            Parameters(self._encoder) as parameters,
            ReleaseWeights(self._out, nester, BLOCK_SIZE) as weights,
        ):
            self._embeddings(parameters, weights)
            weights.keep(f"{HEAD}.weight", head.weight)
            weights.keep(f"{HEAD}.bias", head.bias)
            self._progress.advance(task, 1)
            for index in range(layers):
                self._layer(index, parameters, weights)
                self._progress.advance(task, 1)
        self._progress.finish(task)
        return weights

    def _embeddings(self, parameters: Parameters, weights: ReleaseWeights) -> None:
        shape, first = self._encoder.architecture, self._encoder.first_position
        hidden = shape.hidden_size
        weights.eight_bit_table(EMBEDDING, parameters("embeddings.word_embeddings.weight", shape.vocabulary, hidden))
        positions = parameters("embeddings.position_embeddings.weight", shape.context_length + first, hidden)[first:]
        types = parameters.first_row("embeddings.token_type_embeddings.weight", hidden)
        weights.keep(POSITIONS, positions + types)
        for part in ("weight", "bias"):
            weights.keep(f"{FIRST_NORM}.{part}", parameters(f"embeddings.LayerNorm.{part}", hidden))

    def _layer(self, index: int, parameters: Parameters, weights: ReleaseWeights) -> None:
        hidden, wide = self._encoder.architecture.hidden_size, self._encoder.intermediate
        theirs = f"encoder.layer.{index}"
        parts = [f"{theirs}.attention.self.{part}" for part in ("query", "key", "value")]
        weights.nest(
            layer_name(index, "qkv"), np.concatenate([parameters(f"{p}.weight", hidden, hidden) for p in parts])
        )
        weights.keep(
            f"{layer_name(index, 'qkv')}.bias", np.concatenate([parameters(f"{p}.bias", hidden) for p in parts])
        )
        for ours, name, rows, columns in (
            ("attention_out", "attention.output.dense", hidden, hidden),
            ("up", "intermediate.dense", wide, hidden),
            ("down", "output.dense", hidden, wide),
        ):
            weights.nest(layer_name(index, ours), parameters(f"{theirs}.{name}.weight", rows, columns))
            weights.keep(f"{layer_name(index, ours)}.bias", parameters(f"{theirs}.{name}.bias", rows))
        for ours, name in (("attention_norm", "attention.output.LayerNorm"), ("norm", "output.LayerNorm")):
            for part in ("weight", "bias"):
                weights.keep(f"{layer_name(index, ours)}.{part}", parameters(f"{theirs}.{name}.{part}", hidden))

    def _held_out(self, accuracy: float | None, items: Sequence[LabelledText]) -> tuple[QualityFigure, ...]:
        if accuracy is None:
            return ()
        figure = QualityFigure(
            HELD_OUT_ACCURACY, accuracy, FLOAT_BITS, len(items), self._seed, digest(items), cpu_class()
        )
        return (figure,)


def digest_of(files: Sequence[Path]) -> str:
    """Over the contents of the files, in their order."""
    found = hashlib.sha256()
    for path in files:
        with path.open("rb") as handle:
            found.update(hashlib.file_digest(handle, "sha256").digest())
    return found.hexdigest()


def _tools() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in _TOOLS}
