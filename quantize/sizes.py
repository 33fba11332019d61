"""What a release of a model will weigh, from its config alone: a manifest with sizes and no content.

The manifest lists the tensors and matrices that a build would write, in the layout a build writes them in, so
that whoever sizes a release that exists sizes one that does not in the same way. Sizes of small files are
those of the source where it has them. Nothing here is sealed, and no such manifest may reach a disk.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantize.architecture import BLOCK_SIZE, positive, read_architecture
from quantize.encoder import architecture as encoders
from quantize.errors import UnsupportedArchitecture
from quantize.families import FAMILIES, rotary_share
from release.manifest import (
    BASE,
    CHUNK_BYTES,
    DTYPE_BYTES,
    PLANE_HI,
    PLANE_LO,
    TOKENIZER,
    Architecture,
    CloudReference,
    File,
    Manifest,
    Matrix,
    Recipe,
    Tensor,
    graph_name,
)

GRAPH_BYTES = 100_000
_TOKEN_BYTES = 70  # of tokenizer.json, per entry of the vocabulary, where nobody knows its size
_NO_DIGEST = "0" * 64


def expected_manifest(where: str, config: Mapping[str, Any], tokenizer_bytes: int | None = None) -> Manifest:
    """The release that `weir quantize` would build of the model with this config; `where` names it in refusals.

    Raises UnsupportedArchitecture for a model it would refuse.
    """
    family = config.get("model_type")
    if isinstance(family, str) and family in encoders.FAMILIES:
        architecture, _ = encoders.read_shape(Path(where), config)
        layout = _encoder(architecture, positive(Path(where), config, "intermediate_size"))
        task = "classify"
    elif isinstance(family, str) and family in FAMILIES:
        architecture = read_architecture(Path(where), config)
        layout = _decoder(Path(where), architecture, config)
        task = "generate"
    else:
        known = ", ".join([*FAMILIES, *encoders.FAMILIES])
        raise UnsupportedArchitecture(
            f"{where} is a model of type {family!r}; Weir builds releases from {known} models"
        )
    tokenizer = architecture.vocabulary * _TOKEN_BYTES if tokenizer_bytes is None else tokenizer_bytes
    files = {**layout.sizes, TOKENIZER: tokenizer, **{graph_name(bits): GRAPH_BYTES for bits in (4, 8)}}
    return Manifest(
        name="expected",
        version="0.0.0",
        architecture=architecture,
        files=tuple(_file(name, size) for name, size in files.items()),
        tensors=tuple(layout.tensors),
        matrices=tuple(layout.matrices),
        precisions=(4, 8),
        tokenizer_digest=_NO_DIGEST,
        eos_token_ids=(),
        cloud=CloudReference(""),
        recipe=Recipe("expected", BLOCK_SIZE, 4, 4),
        task=task,
    )


@dataclass(slots=True)
class _Layout:
    """Places of tensors in files that are not written."""

    sizes: dict[str, int] = field(default_factory=lambda: {BASE: 0, PLANE_HI: 0, PLANE_LO: 0})
    tensors: list[Tensor] = field(default_factory=list)
    matrices: list[Matrix] = field(default_factory=list)

    def nest(self, name: str, rows: int, columns: int, table: str = "") -> None:
        """A matrix whose residual step is chosen per block, as error compensation leaves it."""
        count = columns // BLOCK_SIZE
        self._add(PLANE_HI, f"{name}.q", "uint8", (rows, count, BLOCK_SIZE // 2))
        self._add(PLANE_LO, f"{name}.r", "uint8", (rows, count, BLOCK_SIZE // 2))
        self._add(PLANE_LO, f"{name}.c", "uint8", (rows, -(-count // 2)))
        self._add(BASE, f"{name}.s", "float16", (rows, count))
        self._add(BASE, f"{name}.z", "uint8", (rows, -(-count // 2)))
        self.matrices.append(Matrix(name, rows, columns, BLOCK_SIZE, 0, False, table))

    def keep(self, name: str, *shape: int) -> None:
        self._add(BASE, name, "float32", shape)

    def eight_bit_table(self, name: str, rows: int, columns: int) -> None:
        self._add(BASE, f"{name}.q", "uint8", (rows, columns))
        self._add(BASE, f"{name}.s", "float16", (rows, columns // BLOCK_SIZE))
        self._add(BASE, f"{name}.z", "uint8", (rows, columns // BLOCK_SIZE))

    def _add(self, file: str, name: str, dtype: str, shape: Sequence[int]) -> None:
        self.tensors.append(Tensor(name, file, self.sizes[file], dtype, tuple(shape)))
        self.sizes[file] += DTYPE_BYTES[dtype] * math.prod(shape)


def _decoder(path: Path, shape: Architecture, config: Mapping[str, Any]) -> _Layout:
    hidden, inner = shape.hidden_size, positive(path, config, "intermediate_size")
    heads, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    family, layout = FAMILIES[shape.family], _Layout()
    for index in range(shape.layers):
        layer = f"layers.{index}"
        layout.nest(f"{layer}.qkv", heads + 2 * kv, hidden)
        layout.nest(f"{layer}.o", hidden, heads)
        layout.nest(f"{layer}.gate_up", 2 * inner, hidden)
        layout.nest(f"{layer}.down", hidden, inner)
        layout.keep(f"{layer}.norms", 4 * hidden + heads + 2 * kv)
    layout.keep("rotary", family.rotary_tables, shape.context_length, int(shape.head_dim * rotary_share(config)))
    tied = bool(config.get("tie_word_embeddings", family.tied))
    layout.nest("head", shape.vocabulary, hidden, "embedding" if tied else "")
    if not tied:
        layout.nest("embedding", shape.vocabulary, hidden, "embedding")
    return layout


def _encoder(shape: Architecture, inner: int) -> _Layout:
    hidden, layout = shape.hidden_size, _Layout()
    layout.eight_bit_table("words", shape.vocabulary, hidden)
    layout.keep("positions", shape.context_length, hidden)
    for index in range(shape.layers):
        layer = f"layers.{index}"
        layout.nest(f"{layer}.qkv", 3 * hidden, hidden)
        layout.nest(f"{layer}.out", hidden, hidden)
        layout.nest(f"{layer}.up", inner, hidden)
        layout.nest(f"{layer}.down", hidden, inner)
        layout.keep(f"{layer}.biases", 9 * hidden + inner)
    return layout


def _file(name: str, size: int) -> File:
    return File(name, size, _NO_DIGEST, CHUNK_BYTES, (_NO_DIGEST,) * math.ceil(size / CHUNK_BYTES))
