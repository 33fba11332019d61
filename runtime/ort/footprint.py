"""How much memory loading a release takes at its peak, told from its manifest before anything is loaded.

Counted are: the planes and the base as they are mapped; the arrays as the session is fed with them
(scales widened to float32, 8-bit codes composed); the kernels' packed copy of those; the KV cache of
one prefill chunk a slot; and room for activations. The figure is meant to be a little too high: a node
that believed too low a one would be killed by its system.

Must not know: how much memory there is.
"""

from __future__ import annotations

from release.folder import MATRIX_PARTS
from release.manifest import Manifest, Matrix
from release.planes import widened

_FLOAT_BYTES = 4
# Measured with SmolLM2: allocator slack, activations and the graph itself, besides a share of the weights.
_RUNTIME_BYTES = 32 << 20
_SLACK_SHARE = 8


def load_bytes(manifest: Manifest, precision: int, *, slots: int, prefill_chunk: int) -> int:
    """Bytes that a process grows by at most while it loads, and tries out, one session."""
    sizes = {entry.name: entry.bytes for entry in manifest.files}
    mapped = sum(sizes.get(name, 0) for name in manifest.weight_files(precision))
    fed = fed_bytes(manifest, precision)
    made = (matrix for matrix in manifest.matrices if precision == 8 or matrix.offsets)
    composed = sum(_codes(matrix, precision) for matrix in made)
    shape = manifest.architecture
    kv = 2 * shape.layers * shape.kv_heads * shape.head_dim * _FLOAT_BYTES * slots * prefill_chunk
    logits = 2 * slots * shape.vocabulary * _FLOAT_BYTES  # with their probabilities
    return mapped + 2 * fed + composed + fed // _SLACK_SHARE + kv + logits + _RUNTIME_BYTES


def fed_bytes(manifest: Manifest, precision: int) -> int:
    """Bytes of all arrays that a session of that precision is fed with."""
    parts = {f"{matrix.name}.{part}" for matrix in manifest.matrices for part in MATRIX_PARTS}
    others = {
        (tensor.file, tensor.offset): tensor.bytes * (2 if tensor.dtype == "float16" else 1)
        for tensor in manifest.tensors
        if tensor.name not in parts
    }
    return sum(others.values()) + sum(_fed(matrix, precision) for matrix in manifest.matrices)


def _fed(matrix: Matrix, precision: int) -> int:
    blocks = matrix.rows * _columns(matrix, precision) // matrix.block_size
    return _codes(matrix, precision) + blocks * (_FLOAT_BYTES + 1)


def _codes(matrix: Matrix, precision: int) -> int:
    return matrix.rows * _columns(matrix, precision) * precision // 8


def _columns(matrix: Matrix, precision: int) -> int:
    offsets = matrix.offsets and precision == 4
    return widened(matrix.columns, matrix.block_size) if offsets else matrix.columns
