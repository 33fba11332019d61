"""GGUF to a folder of bf16 safetensors, once, in a process of its own.

The process bounds the memory and threads that the conversion takes and gives them back. It may
write only into the folder it is handed; whoever calls renames that into place.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from quantize.families import FAMILIES
from quantize.sources.cache import disk_full
from quantize.sources.errors import BadModel, ConversionFailed, UnknownArchitecture
from runtime.child import PARENT_VARIABLE, die_with_parent

ARCHITECTURES: Mapping[str, str] = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
_LIMIT_S = 1800.0
_MAX_TEXT_BYTES = 16 << 20
# Sizes of GGUF's scalar value types; 8 is a string, 9 an array.
_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class Header:
    """What a GGUF file says about itself; empty where it says nothing."""

    architecture: str
    licence: str


def read_header(path: Path) -> Header:
    """Reads the keys before the tokenizer's. Raises BadModel or UnknownArchitecture."""
    with path.open("rb") as handle:
        if handle.read(4) != b"GGUF":
            raise BadModel(f"{path} is not a GGUF file")
        try:
            found = _general(handle)
        except (struct.error, UnicodeDecodeError, KeyError) as error:
            raise BadModel(f"{path} is a damaged GGUF file: fetch it anew") from error
    name = found.get("general.architecture", "")
    if name not in ARCHITECTURES:
        raise UnknownArchitecture(
            f"{path} holds the GGUF architecture {name or 'none'!r}; Weir can read {', '.join(ARCHITECTURES)}"
        )
    return Header(ARCHITECTURES[name], found.get("general.license", ""))


def read_config(path: Path) -> Mapping[str, Any]:
    """What config.json would say after the conversion, as far as sizes depend on it. Reads no weights."""
    from gguf import GGUFReader

    kind = read_header(path).architecture
    reader = GGUFReader(path)
    prefix = str(reader.fields["general.architecture"].contents())

    def stated(key: str) -> Any:
        found = reader.fields.get(f"{prefix}.{key}")
        return None if found is None else found.contents()

    tokens = reader.fields.get("tokenizer.ggml.tokens")
    config = {
        "model_type": next(family.name for family in FAMILIES.values() if family.architecture == kind),
        "hidden_size": stated("embedding_length"),
        "intermediate_size": stated("feed_forward_length"),
        "num_hidden_layers": stated("block_count"),
        "num_attention_heads": stated("attention.head_count"),
        "num_key_value_heads": stated("attention.head_count_kv"),
        "head_dim": stated("attention.key_length"),
        "max_position_embeddings": stated("context_length"),
        "vocab_size": stated("vocab_size") or (None if tokens is None else len(tokens.data)),
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in reader.tensors),
    }
    return {key: value for key, value in config.items() if value is not None}


def convert(path: Path, folder: Path) -> None:
    """Fills `folder`. Raises ConversionFailed or DiskFull; blocks for up to half an hour."""
    threads = os.environ.get("OMP_NUM_THREADS") or str(len(os.sched_getaffinity(0)))
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": threads,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        PARENT_VARIABLE: str(os.getpid()),
    }
    command = [sys.executable, "-m", "quantize.sources.gguf", str(path), str(folder)]
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ConversionFailed(f"converting {path} took longer than {_LIMIT_S:.0f} s and was stopped") from error
    if done.returncode == 0:
        return
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    if any("No space left on device" in line for line in said):
        raise disk_full(folder)
    if done.returncode == -signal.SIGKILL:
        raise ConversionFailed(f"converting {path} was killed, most likely for want of memory: free some and try again")
    last = said[-1] if said else f"exit status {done.returncode}"
    raise ConversionFailed(f"converting {path} failed: {last}. If the file may be cut short or damaged, fetch it anew")


def _general(handle: BinaryIO) -> dict[str, str]:
    version, _, keys = struct.unpack("<IQQ", handle.read(20))
    if version not in (2, 3):
        raise KeyError(version)
    found = {}
    for _ in range(keys):
        key = _text(handle)
        (kind,) = struct.unpack("<I", handle.read(4))
        if kind == _STRING:
            found[key] = _text(handle)
        elif kind == _ARRAY:
            _skip_array(handle)
        else:
            handle.seek(_SCALARS[kind], os.SEEK_CUR)
        if key.startswith("tokenizer.") and "general.architecture" in found:
            break
    return found


def _text(handle: BinaryIO) -> str:
    (length,) = struct.unpack("<Q", handle.read(8))
    if length > _MAX_TEXT_BYTES:
        raise KeyError(length)
    return handle.read(length).decode("utf-8")


def _skip_array(handle: BinaryIO) -> None:
    kind, count = struct.unpack("<IQ", handle.read(12))
    if kind == _STRING:
        for _ in range(count):
            _text(handle)
    else:
        handle.seek(_SCALARS[kind] * count, os.SEEK_CUR)


def _main(path: Path, folder: Path) -> None:
    """In the process of its own."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        dtype=torch.bfloat16,
        # Without it the weights stay packed, and such a model refuses to be saved.
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # Written through a private temporary file: give it the mode of its neighbours.
    for file in folder.glob("*.safetensors"):
        file.chmod((folder / "config.json").stat().st_mode)


if __name__ == "__main__":
    die_with_parent()
    _main(Path(sys.argv[1]), Path(sys.argv[2]))
