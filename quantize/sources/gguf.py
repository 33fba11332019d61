"""GGUF to a folder of bf16 safetensors, once, in a process of its own.

The process bounds the memory and threads that the conversion takes and gives them back. It may
write only into the folder it is handed; whoever calls renames that into place.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantize.families import FAMILIES
from quantize.sources.cache import disk_full
from quantize.sources.errors import ConversionFailed, UnknownArchitecture
from quantize.sources.gguf_header import Keys, read_header, read_keys
from runtime.child import PARENT_VARIABLE, die_with_parent

_LIMIT_S = 1800.0


def read_config(path: Path) -> Mapping[str, Any]:
    """What config.json would say after the conversion, as far as sizes depend on it. Reads no weights."""
    kind = read_header(path).architecture
    keys = read_keys(path)
    config = {
        "model_type": next(family.name for family in FAMILIES.values() if family.architecture == kind),
        "hidden_size": keys("embedding_length"),
        "intermediate_size": keys("feed_forward_length"),
        "num_hidden_layers": keys("block_count"),
        "num_attention_heads": keys("attention.head_count"),
        "num_key_value_heads": keys("attention.head_count_kv"),
        "head_dim": keys("attention.key_length"),
        "max_position_embeddings": keys("context_length"),
        "sliding_window": keys("attention.sliding_window"),
        "vocab_size": keys("vocab_size") or keys.lengths.get("tokenizer.ggml.tokens"),
        "tie_word_embeddings": "output.weight" not in keys.tensors,
    }
    return {key: value for key, value in config.items() if value is not None}


def refuse_what_would_be_lost(path: Path) -> None:
    """Raises UnknownArchitecture where the file holds what its conversion passes over, so that answers would differ."""
    keys = read_keys(path)
    told = next((told for rule in _LOST if (told := rule(keys)) is not None), None)
    if told is not None:
        raise UnknownArchitecture(f"{path} {told}, which its conversion would lose: pull the original model instead")


def _rotary_factors(keys: Keys) -> str | None:
    factors = sorted(name for name in keys.tensors if name.startswith(("rope_freqs", "rope_factors")))
    return f"scales its rotary positions by {factors[0]}" if factors else None


def _rotary_scaling(keys: Keys) -> str | None:
    kind = keys("rope.scaling.type")
    return None if kind in (None, "none") else f"scales its rotary positions ({kind})"


def _heads(keys: Keys) -> str | None:
    assumed = (keys("embedding_length") or 0) // max(keys("attention.head_count") or 1, 1)
    assumed = 128 if keys.architecture == "qwen3" else assumed
    width, rotated = keys("attention.key_length") or assumed, keys("rope.dimension_count")
    if keys.architecture not in ("llama", "gemma2", "gemma3") and width != assumed:
        return f"has heads of {width} values instead of {assumed}"
    if keys.architecture != "llama" and rotated not in (None, width):
        return f"rotates {rotated} of the {width} values of a head"
    return None


def _gemma(keys: Keys) -> str | None:
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    for name, usual in caps.items() if keys.architecture == "gemma2" else ():
        if keys(name) not in (None, usual):
            return f"caps at {name} {keys(name)} instead of {usual}"
    # The 27B models of both generations scale their attention by another number than the file says.
    if (keys.architecture, keys("block_count")) in (("gemma2", 46), ("gemma3", 62)):
        return "is a 27B model, with an attention scale of its own"
    return None


_LOST = (_rotary_factors, _rotary_scaling, _heads, _gemma)


def convert(path: Path, folder: Path) -> None:
    """Fills `folder`. Raises UnknownArchitecture, ConversionFailed or DiskFull; blocks for up to half an hour."""
    refuse_what_would_be_lost(path)
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


def convert_here(path: Path, folder: Path) -> None:
    """The conversion itself, in this process, with as many threads as OMP_NUM_THREADS says."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        dtype=torch.bfloat16,
        # Without it the weights stay packed, and such a model refuses to be saved.
        quantization_config=GgufConfig(dequantize=True),
    )
    window = read_keys(path)("attention.sliding_window")
    if window is not None and hasattr(model.config, "sliding_window"):
        model.config.sliding_window = window  # some families' is passed over
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # Written through a private temporary file: give it the mode of its neighbours.
    for file in folder.glob("*.safetensors"):
        file.chmod((folder / "config.json").stat().st_mode)


if __name__ == "__main__":
    die_with_parent()
    convert_here(Path(sys.argv[1]), Path(sys.argv[2]))
