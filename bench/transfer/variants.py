"""Releases to compare with: a nested release's 4-bit half, or its 8-bit weights written out, as a release of its own.

The 8-bit one holds ordinary tensors and no planes, as a release that was never nested would: one byte a weight,
scales in half precision. Calibrations, figures and self-tests of the precision go along, except where rounding
the scales changed the weights: then the self-tests, which are of other weights, do not.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantize.layout import WeightFile
from release.folder import describe_file, open_release
from release.manifest import BASE, MANIFEST_NAME, Manifest, Tensor, graph_name, sealed, write

_SCALES = ".s"


def four_only(nested: Path, out: Path, version: str) -> Manifest:
    """Writes the 4-bit release: the same files, without what only 8-bit needs."""
    manifest = open_release(nested, verify=False).manifest
    weights = manifest.weight_files(4)
    _copy(nested, out, manifest, weights)
    tensors = tuple(tensor for tensor in manifest.tensors if tensor.file in weights)
    return _seal(manifest, out, 4, version, tensors=tensors)


def eight_only(nested: Path, out: Path, version: str) -> Manifest:
    """Writes the 8-bit release: every weight composed and stored whole."""
    release = open_release(nested, verify=False)
    manifest = release.manifest
    _copy(nested, out, manifest, (graph_name(8),))
    kept = {tensor.name: tensor.dtype for tensor in manifest.tensors}
    nests = {f"{matrix.name}{part}" for matrix in manifest.matrices for part in (".q", ".s", ".z")}
    with WeightFile(out / BASE) as base:
        exact = _write(base, release.initializers(8), {name: kept[name] for name in kept if name not in nests})
        tensors = tuple(base.tensors)
    return _seal(manifest, out, 8, version, tensors=tensors, matrices=(), sound=exact)


def reversioned(nested: Path, out: Path, version: str) -> Path:
    """The same release under another version."""
    shutil.copytree(nested, out)
    manifest = dataclasses.replace(open_release(nested, verify=False).manifest, version=version)
    (out / MANIFEST_NAME).write_text(write(manifest), encoding="utf-8")
    return out


def _copy(nested: Path, out: Path, manifest: Manifest, weights: tuple[str, ...]) -> None:
    """The files of one precision: those of `weights`, and whatever is no weight."""
    others = {name for bits in manifest.precisions for name in manifest.weight_files(bits)}
    out.mkdir(parents=True)
    for entry in manifest.files:
        if entry.name in weights or entry.name not in others:
            shutil.copyfile(nested / entry.name, out / entry.name)


def _write(base: WeightFile, arrays: Mapping[str, NDArray[Any]], dtypes: Mapping[str, str]) -> bool:
    """Stores arrays under their names, equal ones once. Says whether all were stored exactly."""
    exact, places = True, dict[tuple[str, str], Tensor]()
    for name, array in arrays.items():
        narrow = array.astype(np.float16) if array.dtype == np.float32 and _narrow(name, dtypes) else array
        exact = exact and bool((narrow.astype(array.dtype) == array).all())
        key = (
            hashlib.sha256(np.ascontiguousarray(narrow).reshape(-1).view(np.uint8).data).hexdigest(),
            str(narrow.dtype),
        )
        if key in places:
            base.alias(name, places[key], narrow.shape)
        else:
            places[key] = base.add(name, narrow)
    return exact


def _narrow(name: str, dtypes: Mapping[str, str]) -> bool:
    """Whether an array is stored in half precision: as it was, or because it holds a matrix's block scales."""
    return dtypes[name] == "float16" if name in dtypes else name.endswith(_SCALES)


def _seal(
    manifest: Manifest,
    out: Path,
    bits: int,
    version: str,
    *,
    tensors: tuple[Tensor, ...],
    matrices: Any = None,
    sound: bool = True,
) -> Manifest:
    made = sealed(
        dataclasses.replace(
            manifest,
            version=version,
            precisions=(bits,),
            tensors=tensors,
            matrices=manifest.matrices if matrices is None else matrices,
            files=tuple(describe_file(path) for path in sorted(out.iterdir())),
            quality=tuple(figure for figure in manifest.quality if figure.precision != 12 - bits),
            calibrations=tuple(entry for entry in manifest.calibrations if entry.precision == bits),
            self_tests=tuple(test for test in manifest.self_tests if sound and test.precision == bits),
        )
    )
    (out / MANIFEST_NAME).write_text(write(made), encoding="utf-8")
    return made
