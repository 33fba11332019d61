"""The releases that are compared: the best nested one, and plain rounding to nearest at 4 and at 8 bits.

All three have the same layout, block size, head and embedding, so that their bytes can be compared. The
8-bit rival is not the nested one's upper half: it rounds every weight at 8 bits with a scale of its own.
They are built once and kept in the cache under a digest of the source and of the code that builds.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import importlib.metadata
import json
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.quality.rotate import rotate_model
from quantize.architecture import SourceModel, read_source
from quantize.build import build_release
from quantize.calibration_text import read_text
from quantize.compensate import Compensating
from quantize.export import Export, export_graph
from quantize.layout import WeightFile
from quantize.nest import Nested, Nester, RoundToNearest, round_to_nearest
from quantize.progress import Progress
from quantize.sources.cache import Cache
from quantize.sources.resolve import Source
from release.folder import MATRIX_PARTS, Release, describe_file, open_release
from release.manifest import BASE, MANIFEST_NAME, PLANE_HI, PLANE_LO, Tensor, graph_name, sealed, write
from release.planes import Floats

_EIGHT = 8
_CODE = ("quantize", "release", "bench.quality")
# Modules of those packages that leave a built release as it is.
_AFTER_THE_BUILD = frozenset(
    ("agreement", "calibrate", "edge_answers", "evaluate", "evaluation", "evaluation_text", "fit", "gates", "items",
     "levels", "measure", "progress", "quality_plots", "quality_report", "reference", "run", "sealing", "selftest",
     "subjects", "text", "verdicts", "weight_errors")
)  # fmt: skip
_TOOLS = ("onnxruntime", "onnxruntime-genai", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class Rivals:
    """Three releases and the float32 folder that all of them were built from."""

    source: Path
    nested: Release
    rounded: Release  # to nearest at 4 bits, with the residual that makes a nested 8-bit weight of it
    eight: Release  # to nearest at 8 bits, never nested


def prepare(
    source: Source, *, rotated: bool, seed: int, threads: int, progress: Progress, export: Export = export_graph
) -> Rivals:
    """The rivals made from `source`, or from its rotated twin; from the cache where they are there."""
    cache = Cache.from_environment(os.environ)
    prefix = f"bench-quality-{source.name}{'-rotated' if rotated else ''}-"
    key = prefix + _digest(source, rotated, seed)
    with cache.locked(key, progress):
        if not cache.folder(key).is_dir():
            with cache.making(key) as draft:
                folder = _source(source, draft, rotated=rotated, seed=seed)
                _build(folder, draft, source.name.lower(), threads=threads, progress=progress, export=export)
            _drop_old(cache, prefix, key)
    made = cache.folder(key)
    nested, rounded, eight = (open_release(made / name, verify=False) for name in ("nested", "rounded", "eight"))
    return Rivals(made / "source" if rotated else source.folder, nested, rounded, eight)


def _source(source: Source, draft: Path, *, rotated: bool, seed: int) -> Path:
    if not rotated:
        return source.folder
    rotate_model(source.folder, draft / "source", seed=seed)
    return draft / "source"


def _build(folder: Path, draft: Path, name: str, *, threads: int, progress: Progress, export: Export) -> None:
    work, recorded = draft / "exported", draft / "eight.bin"
    graphs: list[Path] = []

    def once(model: SourceModel, _: Path, *, threads: int) -> Path:
        if not graphs:
            work.mkdir()
            graphs.append(export(model, work, threads=threads))
        return graphs[0]

    def build(nester: Nester, out: Path) -> None:
        build_release(folder, out, name=name, nester=nester, progress=progress, threads=threads, export=once)

    with WeightFile(recorded) as file:
        build(_Recording(file), draft / "rounded")
    _write_eight(open_release(draft / "rounded", verify=False), recorded, file.tensors, draft / "eight")
    recorded.unlink()
    build(Compensating(read_source(folder), read_text(), threads=threads, progress=progress), draft / "nested")
    shutil.rmtree(work)


class _Recording:
    """Rounds to nearest at 4 bits, and writes down what rounding to nearest at 8 bits gives."""

    def __init__(self, file: WeightFile) -> None:
        self._file, self._inner = file, RoundToNearest()

    @property
    def method(self) -> str:
        return self._inner.method

    @property
    def text_digest(self) -> str:
        return self._inner.text_digest

    def nest(self, name: str, weight: Floats, block_size: int) -> Nested:
        """See Nester."""
        eight = round_to_nearest(weight, block_size, _EIGHT)
        self._file.add(f"{name}.q", eight.codes)
        self._file.add(f"{name}.s", eight.scales.astype(np.float16))
        self._file.add(f"{name}.z", eight.zeros)
        return self._inner.nest(name, weight, block_size)


def _write_eight(rounded: Release, recorded: Path, places: Sequence[Tensor], out: Path) -> None:
    """The 8-bit release: what `rounded` keeps outside its matrices, and the recorded matrices, in one file."""
    manifest = rounded.manifest
    nests = {f"{matrix.name}.{part}" for matrix in manifest.matrices for part in MATRIX_PARTS}
    out.mkdir()
    for entry in manifest.files:
        if entry.name not in (BASE, PLANE_HI, PLANE_LO, graph_name(4)):
            shutil.copyfile(rounded.path / entry.name, out / entry.name)
    with WeightFile(out / BASE) as base:
        known = dict[tuple[str, int], Tensor]()
        for tensor in manifest.tensors:
            if tensor.name in nests:
                continue
            place = (tensor.file, tensor.offset)
            if place in known:
                base.alias(tensor.name, known[place], tensor.shape)
            else:
                known[place] = base.add(tensor.name, _read(rounded.path / tensor.file, tensor))
        tables = {f"{matrix.name}.q": f"{matrix.table}.q" for matrix in manifest.matrices if matrix.table}
        for tensor in places:
            values, table = _read(recorded, tensor), tables.get(tensor.name)
            written = base.add(tensor.name, values.reshape(len(values), -1) if table == tensor.name else values)
            if table is not None and table != tensor.name:
                base.alias(table, written, (len(values), values[0].size))
    made = sealed(
        dataclasses.replace(
            manifest,
            precisions=(_EIGHT,),
            matrices=(),
            tensors=tuple(base.tensors),
            files=tuple(describe_file(path) for path in sorted(out.iterdir())),
            quality=(),
        )
    )
    (out / MANIFEST_NAME).write_text(write(made), encoding="utf-8")


def _read(path: Path, tensor: Tensor) -> NDArray[Any]:
    values = np.fromfile(path, tensor.dtype, count=math.prod(tensor.shape), offset=tensor.offset)
    return values.reshape(tensor.shape)


def _digest(source: Source, rotated: bool, seed: int) -> str:
    """Twelve hexadecimal digits that change when anything the rivals depend on does."""
    recipe = {
        "source": source.sha256,
        "rotated": seed if rotated else None,
        "code": dict(_code()),
        "text": hashlib.sha256(read_text().encode()).hexdigest(),
        "tools": {name: importlib.metadata.version(name) for name in _TOOLS},
    }
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:12]


def _code() -> Iterator[tuple[str, str]]:
    """The Python files that build, each with its digest."""
    for package in _CODE:
        for file in sorted(Path(str(resources.files(package))).glob("*.py")):
            if file.stem not in _AFTER_THE_BUILD:
                yield f"{package}/{file.name}", hashlib.sha256(file.read_bytes()).hexdigest()


def _drop_old(cache: Cache, prefix: str, kept: str) -> None:
    """Rivals take as much room as the model several times over: only those of the newest code stay."""
    for old in cache.folder(prefix).parent.glob(f"{glob.escape(prefix)}{'[0-9a-f]' * 12}"):
        if old.name != kept:
            shutil.rmtree(old, ignore_errors=True)
