"""A release folder on disk: opened, verified, and turned into the arrays a session is fed with.

Verification streams every file once and checks size, chunk hashes and the whole hash; a wrong or
truncated file is named. Tensors are views into memory-mapped files; half-precision scales and the
composed 8-bit weights are made in memory, because only the planes are stored. Must not know any
model runtime: it hands out named numpy arrays and the graph as bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from release.errors import CorruptRelease, ManifestError, ReleaseError
from release.listing import read_manifest
from release.manifest import (
    CHUNK_BYTES,
    PLANE_LO,
    File,
    Manifest,
    Matrix,
    Tensor,
    graph_name,
    sums_name,
)
from release.planes import block_sums, compose_blocks, compose_packed, unpackz, with_offsets

Arrays = dict[str, NDArray[Any]]

MATRIX_PARTS = "qszrcfu"  # what the tensors of a nested matrix are called after its name


def describe_file(path: Path, chunk_bytes: int = CHUNK_BYTES) -> File:
    """The manifest's entry for a file on disk, read once."""
    whole, chunks, size = hashlib.sha256(), [], 0
    with path.open("rb") as handle:
        while piece := handle.read(chunk_bytes):
            whole.update(piece)
            chunks.append(hashlib.sha256(piece).hexdigest())
            size += len(piece)
    return File(path.name, size, whole.hexdigest(), chunk_bytes, tuple(chunks))


def verify_file(path: Path, entry: File) -> None:
    """Raises CorruptRelease unless the file is byte for byte what the manifest promises."""
    try:
        size = path.stat().st_size
    except FileNotFoundError as error:
        raise CorruptRelease(f"{path} is missing: fetch or build the release again") from error
    if size != entry.bytes:
        kind = "truncated" if size < entry.bytes else "too long"
        raise CorruptRelease(f"{path} is {kind}: {size} bytes instead of {entry.bytes}; fetch the release again")
    whole = hashlib.sha256()
    with path.open("rb") as handle:
        for index, expected in enumerate(entry.chunks):
            piece = handle.read(entry.chunk_bytes)
            whole.update(piece)
            if hashlib.sha256(piece).hexdigest() != expected:
                start = index * entry.chunk_bytes
                raise CorruptRelease(
                    f"{path} is damaged between bytes {start} and {start + len(piece)}: fetch the release again"
                )
    if whole.hexdigest() != entry.sha256:
        raise CorruptRelease(f"{path} has another hash than the manifest promises: fetch the release again")


class Release:
    """An open release folder."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest
        self._maps: dict[str, NDArray[np.uint8]] = {}
        self._digests: dict[int, str] = {}
        self._tensors = {tensor.name: tensor for tensor in manifest.tensors}

    @property
    def id(self) -> str:
        return self.manifest.id

    @property
    def precisions(self) -> tuple[int, ...]:
        """The precisions whose planes and graphs lie in this folder now."""
        return precisions_here(self.path, self.manifest)

    def graph(self, precision: int) -> bytes:
        """The ONNX graph of one precision, without weights."""
        self._demand(precision)
        return (self.path / graph_name(precision)).read_bytes()

    def initializers(self, precision: int) -> Arrays:
        """Every weight the graph of that precision names. Views into mapped files where that is possible."""
        self._demand(precision)
        parts = {f"{matrix.name}.{part}" for matrix in self.manifest.matrices for part in MATRIX_PARTS}
        arrays = {name: self._array(name) for name in self._tensors if name not in parts}
        arrays = {name: _as_float32(array) for name, array in arrays.items()}
        for matrix in self.manifest.matrices:
            arrays.update(self._four(matrix) if precision == 4 else self._eight(matrix))
            if matrix.table:
                # The very bytes of the product's codes: a tied embedding is in memory once.
                arrays[f"{matrix.table}.q"] = arrays[f"{matrix.name}.q"].reshape(matrix.rows, -1)
        return arrays

    def weight_digest(self, precision: int) -> str:
        """SHA-256 over the graph and the weight bytes a session of that precision is fed with."""
        if precision not in self._digests:
            self._digests[precision] = weight_digest(self.graph(precision), self.initializers(precision))
        return self._digests[precision]

    def _demand(self, precision: int) -> None:
        if precision not in self.precisions:
            have = ", ".join(map(str, self.precisions)) or "none"
            raise ReleaseError(f"release {self.id} has no {precision}-bit weights here (it has: {have})")

    def _array(self, name: str) -> NDArray[Any]:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise ManifestError(f"release {self.id} has no tensor {name}")
        return self._view(tensor)

    def _view(self, tensor: Tensor) -> NDArray[Any]:
        if tensor.file not in self._maps:
            # A plain array over the map, not np.memmap: the subclass is slower to slice and to pass on.
            self._maps[tensor.file] = np.asarray(np.memmap(self.path / tensor.file, np.uint8, "r"))
        raw = self._maps[tensor.file][tensor.offset : tensor.offset + tensor.bytes]
        return raw.view(tensor.dtype).reshape(tensor.shape)

    def _four(self, matrix: Matrix) -> Arrays:
        name, count = matrix.name, matrix.columns // matrix.block_size
        parts = self._array(f"{name}.q"), _as_float32(self._array(f"{name}.s")), self._array(f"{name}.z")
        sums: Arrays = {}
        if matrix.offsets:
            units = _as_float32(self._array(f"{name}.u"))
            parts = with_offsets(*parts, unpackz(self._array(f"{name}.f"), count), units)
            sums = _named(sums_name(matrix.columns), block_sums(matrix.columns, matrix.block_size))
        return {**sums, **_named(name, parts)}

    def _eight(self, matrix: Matrix) -> Arrays:
        name, count = matrix.name, matrix.columns // matrix.block_size
        if matrix.residual_step:
            steps = np.full((matrix.rows, count), matrix.residual_step, np.uint8)
        else:
            steps = unpackz(self._array(f"{name}.c"), count) + np.uint8(1)  # kept as c - 1, a nibble a block
        q8 = compose_packed(
            self._array(f"{name}.q"), self._array(f"{name}.r"), None if matrix.residual_step == 16 else steps
        )
        scales, zeros = compose_blocks(
            _as_float32(self._array(f"{name}.s")), unpackz(self._array(f"{name}.z"), count), steps
        )
        return _named(name, (q8, scales, zeros))


def _named(name: str, parts: tuple[NDArray[Any], NDArray[Any], NDArray[Any]]) -> Arrays:
    return {f"{name}.{part}": values for part, values in zip("qsz", parts, strict=True)}


def precisions_here(path: Path, manifest: Manifest) -> tuple[int, ...]:
    """The precisions whose graph and planes lie in a folder. A node may hold 4-bit alone."""
    return tuple(
        bits for bits in manifest.precisions if all((path / name).is_file() for name in manifest.weight_files(bits))
    )


def weight_digest(graph: bytes, arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 over a graph and named arrays, in the order of their names."""
    digest = hashlib.sha256(graph)
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"\n{name} {array.dtype} {list(array.shape)}\n".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def open_release(
    path: Path, *, verify: bool = True, skip: frozenset[str] = frozenset(), told: Callable[[int], None] | None = None
) -> Release:
    """Opens a release folder; with `verify`, only if every file but those in `skip` is what it should be.

    `plane.lo.bin` may be missing: a node may hold 4-bit alone. `told` hears of bytes verified.
    Raises ReleaseError.
    """
    manifest = read_manifest(path)
    for entry in manifest.files if verify else ():
        absent = entry.name in (PLANE_LO, graph_name(8)) and not (path / entry.name).exists()
        if entry.name in skip or (absent and 4 in manifest.precisions):
            continue
        verify_file(path / entry.name, entry)
        if told is not None:
            told(entry.bytes)
    return Release(path, manifest)


def _as_float32(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.float32) if array.dtype == np.float16 else array
