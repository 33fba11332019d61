"""What a GGUF file says about itself, read from its front alone: keys, lengths of arrays, names of tensors.

Values of arrays are passed over, which makes this hundreds of times faster than parsing them; a vocabulary has
more than a hundred thousand. Raises BadModel for what is no GGUF or is cut short.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from quantize.sources.errors import BadModel, UnknownArchitecture

ARCHITECTURES: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}
_MAX_TEXT_BYTES = 16 << 20
_MOST_ENTRIES = 1 << 24
_STRING, _ARRAY = 8, 9
# GGUF's scalar value types as struct knows them.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True, slots=True)
class Header:
    """What a GGUF file says about itself; empty where it says nothing. `architecture` is transformers' class."""

    architecture: str
    licence: str


@dataclass(frozen=True, slots=True)
class Keys:
    """Scalars and texts by key, lengths of arrays by key, tensors' names. Called with a key of its architecture."""

    values: Mapping[str, Any]
    lengths: Mapping[str, int] = field(default_factory=dict)
    tensors: frozenset[str] = frozenset()

    @property
    def architecture(self) -> str:
        return str(self.values.get("general.architecture", ""))

    def __call__(self, name: str) -> Any:
        return self.values.get(f"{self.architecture}.{name}")


def read_header(path: Path) -> Header:
    """Reads the keys before the tokenizer's. Raises BadModel or UnknownArchitecture."""
    keys = _read(path, whole=False)
    if keys.architecture not in ARCHITECTURES:
        raise UnknownArchitecture(
            f"{path} holds the GGUF architecture {keys.architecture or 'none'!r}; "
            f"Weir can read {', '.join(ARCHITECTURES)}"
        )
    return Header(ARCHITECTURES[keys.architecture], str(keys.values.get("general.license", "")))


def read_keys(path: Path) -> Keys:
    """Everything before the weights. Raises BadModel."""
    return _read(path, whole=True)


def _read(path: Path, *, whole: bool) -> Keys:
    with path.open("rb") as handle:
        if handle.read(4) != b"GGUF":
            raise BadModel(f"{path} is not a GGUF file")
        try:
            return _keys(handle, whole)
        except (struct.error, UnicodeDecodeError, KeyError) as error:
            raise BadModel(f"{path} is a damaged GGUF file: fetch it anew") from error


def _keys(handle: BinaryIO, whole: bool) -> Keys:
    version, tensors, count = struct.unpack("<IQQ", handle.read(20))
    if version not in (2, 3) or max(tensors, count) > _MOST_ENTRIES:
        raise KeyError(version)
    values: dict[str, Any] = {}
    lengths: dict[str, int] = {}
    for _ in range(count):
        key = _text(handle)
        (kind,) = struct.unpack("<I", handle.read(4))
        if kind == _STRING:
            values[key] = _text(handle)
        elif kind == _ARRAY:
            lengths[key] = _pass_array(handle)
        else:
            (values[key],) = struct.unpack(f"<{_SCALARS[kind]}", handle.read(struct.calcsize(f"<{_SCALARS[kind]}")))
        if not whole and key.startswith("tokenizer.") and "general.architecture" in values:
            return Keys(values)
    return Keys(values, lengths, frozenset(_tensor(handle) for _ in range(tensors)) if whole else frozenset())


def _tensor(handle: BinaryIO) -> str:
    name = _text(handle)
    (dimensions,) = struct.unpack("<I", handle.read(4))
    if dimensions > 8:
        raise KeyError(dimensions)
    handle.seek(8 * dimensions + 12, os.SEEK_CUR)  # sizes, type, place
    return name


def _text(handle: BinaryIO) -> str:
    (length,) = struct.unpack("<Q", handle.read(8))
    if length > _MAX_TEXT_BYTES:
        raise KeyError(length)
    content = handle.read(length)
    if len(content) < length:
        raise struct.error("the file ends inside a text")
    return content.decode("utf-8")


def _pass_array(handle: BinaryIO) -> int:
    """How many entries the array has."""
    kind, count = struct.unpack("<IQ", handle.read(12))
    if count > _MOST_ENTRIES:
        raise KeyError(count)
    if kind == _STRING:
        for _ in range(count):
            (length,) = struct.unpack("<Q", handle.read(8))
            if length > _MAX_TEXT_BYTES:
                raise KeyError(length)
            handle.seek(length, os.SEEK_CUR)
    else:
        handle.seek(struct.calcsize(f"<{_SCALARS[kind]}") * count, os.SEEK_CUR)
    return int(count)
