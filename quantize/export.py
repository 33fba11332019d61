"""A model folder becomes a plain fp32 ONNX graph, by onnxruntime-genai's model builder.

The builder runs as a process of its own, offline, with its threads bounded: it covers many
architectures and leaves a clean graph that our pass rewrites. It writes four bytes a parameter, so
the room is checked before it starts. Its output is for `quantize.graph` alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Protocol

from quantize.architecture import SourceModel
from quantize.errors import ExportFailed, OutOfSpace
from runtime.child import PARENT_VARIABLE

GRAPH = "model.onnx"
_TIMEOUT_S = 3600.0
_TOLD_LINES = 12


class Export(Protocol):
    """Makes the graph of a model under `work`, with its weights beside it; returns the graph's path."""

    def __call__(self, source: SourceModel, work: Path, *, threads: int) -> Path: ...


def export_graph(source: SourceModel, work: Path, *, threads: int = 1) -> Path:
    """Writes the graph and its weights under `work`; returns the graph's path.

    Raises OutOfSpace before the start or ExportFailed with the end of what the builder said.
    """
    _demand_space(source, work)
    out, cache = work / "exported", work / "cache"
    command = [
        *(sys.executable, "-m", "quantize.exporter"),
        *("-i", str(source.path.resolve()), "-o", str(out), "-p", "fp32", "-e", "cpu", "-c", str(cache)),
    ]
    paths = (str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", ""))
    environment = {
        **os.environ,
        PARENT_VARIABLE: str(os.getpid()),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
    }
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ExportFailed(f"exporting {source.path} took more than {_TIMEOUT_S:.0f} s and was stopped") from error
    if done.returncode != 0 or not (out / GRAPH).is_file():
        told = "\n".join((done.stderr or done.stdout).strip().splitlines()[-_TOLD_LINES:])
        if "No space left" in told:
            raise OutOfSpace(f"the disk of {work} filled up while {source.path} was exported: free some room")
        raise ExportFailed(f"exporting {source.path} failed (exit {done.returncode}):\n{told}")
    return out / GRAPH


def _demand_space(source: SourceModel, work: Path) -> None:
    # At most two bytes a parameter in the source become four here, and the tied head may be written twice.
    need, free = source.weight_bytes * 3, shutil.disk_usage(work).free
    if free < need:
        raise OutOfSpace(
            f"building from {source.path} needs about {need / 1e9:.1f} GB under {work}, {free / 1e9:.1f} GB are free"
        )
