"""How much memory a session takes once it runs, and what stands around it; told from a manifest.

`runtime.ort.footprint` says what loading takes at its peak; this says what stays. Figures beside the weights
were measured with SmolLM2-135M and Qwen2.5-0.5B on x86-64 (within 8 % there): what the runtime keeps of
the weights for itself, a parsed tokenizer's size by its file's, and processes before they hold a model.

Must not know: how much memory there is.
"""

from __future__ import annotations

from release.manifest import TOKENIZER, Manifest
from runtime.ort.footprint import fed_bytes, load_bytes

ENGINE_BYTES = 90 << 20
OTHER_PROCESSES_BYTES = 145 << 20  # launcher and front
_SESSION_BYTES = 44 << 20
_KEPT_SHARE = 6
_TOKENIZER_FACTOR = 8
_FLOAT_BYTES = 4
_PREFILL_CHUNK = 128


def kv_bytes_per_token(manifest: Manifest) -> int:
    """Bytes of the KV cache for one position of one sequence; 0 for a classifier."""
    shape = manifest.architecture
    if manifest.task != "generate":
        return 0
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * _FLOAT_BYTES


def session_bytes(manifest: Manifest, precision: int, *, slots: int, context: int) -> int:
    """Bytes that a session and its KV cache take when every slot is full."""
    fed = fed_bytes(manifest, precision)
    # Half-precision values stay mapped beside their widened copies.
    mapped = sum(tensor.bytes for tensor in manifest.tensors if tensor.dtype == "float16")
    return fed + mapped + fed // _KEPT_SHARE + _SESSION_BYTES + kv_bytes_per_token(manifest) * slots * context


def engine_bytes(manifest: Manifest, precisions: tuple[int, ...], *, slots: int, context: int) -> int:
    """The engine process with a session of each of the precisions."""
    sessions = sum(session_bytes(manifest, bits, slots=slots, context=context) for bits in precisions)
    return ENGINE_BYTES + tokenizer_bytes(manifest) + sessions


def peak_bytes(manifest: Manifest, precisions: tuple[int, ...], *, slots: int, context: int) -> int:
    """The engine process at its largest: while it loads the last of its sessions, or with all of them full."""
    loading = ENGINE_BYTES + tokenizer_bytes(manifest)
    loading += sum(session_bytes(manifest, bits, slots=slots, context=context) for bits in precisions[:-1])
    loading += load_bytes(manifest, precisions[-1], slots=slots, prefill_chunk=_PREFILL_CHUNK)
    return max(loading, engine_bytes(manifest, precisions, slots=slots, context=context))


def tokenizer_bytes(manifest: Manifest) -> int:
    """A parsed tokenizer."""
    return manifest.file(TOKENIZER).bytes * _TOKENIZER_FACTOR
