"""Which parts of Weir an install carries, and what to type for one that is missing.

Must not import any of them: looking for a module must not cost its start.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

# A module of each package an extra brings, that a role cannot run without.
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "edge": ("fastapi", "grpc_health", "grpc_reflection", "jinja2", "llguidance", "numpy", "onnxruntime", "psutil",
             "securesystemslib", "tokenizers", "tuf", "uvicorn"),
    "cloud": ("accelerate", "fastapi", "grpc_health", "grpc_reflection", "jinja2", "psutil", "redis", "torch",
              "transformers", "uvicorn"),
    "gateway": ("fastapi", "grpc_health", "grpc_reflection", "numpy", "psutil", "redis", "uvicorn"),
    "quantize": ("accelerate", "gguf", "huggingface_hub", "jinja2", "matplotlib", "numpy", "onnx", "onnx_ir",
                 "onnxruntime", "onnxruntime_genai", "psutil", "safetensors", "securesystemslib", "sklearn",
                 "tokenizers", "torch", "transformers", "tuf"),
    "publish": ("numpy", "securesystemslib", "tuf"),
    "bench": ("matplotlib", "numpy", "openai", "psutil"),
}  # fmt: skip


class MissingExtra(Exception):
    """A part that this command needs is not installed."""


def missing(extra: str, *without: str) -> list[str]:
    """Modules of `extra` that are not installed, leaving out those in `without`."""
    return [name for name in EXTRAS[extra] if name not in without and importlib.util.find_spec(name) is None]


def require(extra: str, what: str, *without: str) -> None:
    """Raises MissingExtra unless `extra` is installed; `without` names what this role does without."""
    if absent := missing(extra, *without):
        raise MissingExtra(
            f"{what} needs {', '.join(absent)}, which this install lacks: pip install 'weir-inference[{extra}]'"
        )
