"""The releases that are compared: the best nested one, and plain rounding to nearest at 4 and at 8 bits.

All three have the same layout, block size, head and embedding, so that their bytes can be compared. The
8-bit rival is not a nested one's upper half: it rounds every weight at 8 bits with a scale of its own.
They are built once and kept in the cache under a digest of what they are made of and of the code that builds.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantize.layout import WeightFile
from quantize.nest import Nested, Nester, RoundToNearest, round_to_nearest
from quantize.progress import Progress
from quantize.sources.cache import Cache
from release.folder import MATRIX_PARTS, Release, describe_file, open_release
from release.manifest import BASE, MANIFEST_NAME, PLANE_HI, PLANE_LO, Tensor, graph_name, sealed, write
from release.planes import Floats

EIGHT = 8
SOURCE = "source"  # the folder beside the rivals that holds a float model made for them
_CODE = ("quantize", "quantize.encoder", "release", "bench.quality")
# Modules of those packages that leave a built release as it is.
_AFTER_THE_BUILD = frozenset(
    ("agreement", "calibrate", "edge_answers", "evaluate", "evaluation", "evaluation_text", "fit", "gates", "items",
     "levels", "measure", "progress", "quality_plots", "quality_report", "reference", "run", "sealing", "selftest",
     "subjects", "text", "weight_errors")
)  # fmt: skip
_TOOLS = ("onnxruntime", "onnxruntime-genai", "scikit-learn", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class Rivals:
    """Three releases and the folder they lie in."""

    folder: Path
    nested: Release
    rounded: Release  # to nearest at 4 bits, with the residual that makes a nested 8-bit weight of it
    eight: Release  # to nearest at 8 bits, never nested

    def named(self) -> tuple[tuple[str, Release, int], ...]:
        """What is compared, under the names it is reported by."""
        return (
            ("int8_rtn", self.eight, 8),
            ("nested8", self.nested, 8),
            ("int4_rtn", self.rounded, 4),
            ("nested4", self.nested, 4),
        )


@dataclass(frozen=True, slots=True)
class Build:
    """How a model's releases are made: `release` builds one at a folder, with the nester it is given, or its best."""

    release: Callable[[Path, Nester | None], None]


def kept(name: str, recipe: Mapping[str, Any], prepare: Callable[[Path], Build], progress: Progress) -> Rivals:
    """The rivals of that recipe, from the cache where they are there; `prepare` readies the folder they go to."""
    cache = Cache.from_environment(os.environ)
    prefix = f"bench-quality-{name}-"
    key = prefix + _digest(recipe)
    with cache.locked(key, progress):
        if not cache.folder(key).is_dir():
            with cache.making(key) as draft:
                _build(draft, prepare(draft))
            _drop_old(cache, prefix, key)
    made = cache.folder(key)
    return Rivals(made, *(open_release(made / part, verify=False) for part in ("nested", "rounded", "eight")))


def _build(draft: Path, how: Build) -> None:
    recorded = draft / "recorded.bin"
    with WeightFile(recorded) as file:
        how.release(draft / "rounded", _Recording(file))
    _write_eight(open_release(draft / "rounded", verify=False), recorded, file.tensors, draft / "eight")
    recorded.unlink()
    how.release(draft / "nested", None)


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
        eight = round_to_nearest(weight, block_size, EIGHT)
        self._file.add(f"{name}.q", eight.codes)
        self._file.add(f"{name}.s", eight.scales.astype(np.float16))
        self._file.add(f"{name}.z", eight.zeros)
        return self._inner.nest(name, weight, block_size)


def _write_eight(rounded: Release, recorded: Path, places: Sequence[Tensor], out: Path) -> None:
    """The 8-bit release: what `rounded` keeps outside its matrices, and the recorded matrices, in one file."""
    manifest = rounded.manifest
    nests = {f"{matrix.name}.{part}" for matrix in manifest.matrices for part in MATRIX_PARTS}
    tables = {f"{matrix.name}.q": matrix for matrix in manifest.matrices if matrix.table}
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
        for tensor in places:
            matrix, values = tables.get(tensor.name), _read(recorded, tensor)
            if matrix is None:
                base.add(tensor.name, values)
            elif matrix.table == matrix.name:  # rows are looked up, and nothing is multiplied
                base.add(tensor.name, values.reshape(matrix.rows, matrix.columns))
            else:  # a tied embedding reads the head's own bytes
                base.alias(f"{matrix.table}.q", base.add(tensor.name, values), (matrix.rows, matrix.columns))
    made = sealed(
        dataclasses.replace(
            manifest,
            precisions=(EIGHT,),
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


def _digest(recipe: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits that change when anything the rivals depend on does."""
    whole = {
        **recipe,
        "code": dict(_code()),
        "tools": {name: importlib.metadata.version(name) for name in _TOOLS},
    }
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:12]


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
