"""What a model's folder says without loading it: its settings and the digests of its files.

Raises ValueError naming the folder and what to do. Must not know: torch.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from cloud.config import WeightPrecision

_WEIGHT_SUFFIXES = (".safetensors", ".bin")


def model_config(model_dir: Path) -> dict[str, Any]:
    """config.json."""
    path = model_dir / "config.json"
    try:
        config = json.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"{model_dir} holds no readable config.json ({error}); give a Hugging Face folder") from error
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} must hold an object")
    return config


def weight_digest(model_dir: Path, precision: WeightPrecision) -> str:
    """SHA-256 over the weight files' names and bytes and the width they are held in."""
    digest = hashlib.sha256(precision.value.encode())
    files = sorted(path for path in model_dir.iterdir() if path.suffix in _WEIGHT_SUFFIXES)
    if not files:
        raise ValueError(f"{model_dir} holds no .safetensors file; convert the model first (weir pull)")
    for path in files:
        digest.update(path.name.encode())
        with path.open("rb") as handle:
            while chunk := handle.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


def tokenizer_digest(model_dir: Path) -> str:
    """SHA-256 of tokenizer.json: equal digests, equal token ids. Empty when there is no such file."""
    path = model_dir / "tokenizer.json"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
