"""Would sending the difference of two releases pay? Measured, tensor by tensor (docs/adr/0011-no-deltas.md).

    python -m bench.transfer.deltas OLD NEW                   compare two release folders
    python -m bench.transfer.deltas --perturb MODEL SHARE OUT write a model folder as a light fine-tune would leave it

A file that both releases share costs nothing already, since stores and repositories are content-addressed. For
the others the delta is taken as favourably as can be: exclusive or of tensors of one name and shape, so that
nothing is lost to alignment, then zlib or LZMA. The entropy of its 4-bit symbols bounds what a coder that
looks at one symbol at a time could reach.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import shutil
import sys
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from release.folder import open_release
from release.manifest import PLANE_LO, Manifest, Tensor, graph_name

Bytes = NDArray[np.uint8]

_PIECE = 1 << 22


@dataclass(slots=True)
class Delta:
    """One file of the new release against the old one. All figures but the first are bytes."""

    name: str
    bytes: int
    shared: bool = False  # the very same file: nothing is fetched in any case
    same: int = 0  # in equal places
    zlib: int = 0
    lzma: int = 0
    entropy: float = 0.0


@dataclass(slots=True)
class _Coder:
    """Compresses a file's delta piece by piece, so that a large one never stands in memory whole."""

    delta: Delta
    symbols: NDArray[np.int64] = field(default_factory=lambda: np.zeros(16, np.int64))

    def add(self, old: Bytes | None, new: Bytes) -> None:
        for start in range(0, new.size, _PIECE):
            piece = new[start : start + _PIECE]
            change = piece if old is None else piece ^ old[start : start + _PIECE]
            content = change.tobytes()
            self.delta.zlib += len(zlib.compress(content, 6))
            self.delta.lzma += len(lzma.compress(content, preset=1))
            if old is not None:
                self.delta.same += int((change == 0).sum())
            self.symbols += np.bincount(change & 15, minlength=16) + np.bincount(change >> 4, minlength=16)

    def end(self) -> Delta:
        shares = self.symbols[self.symbols > 0] / max(1, self.symbols.sum())
        self.delta.entropy = float(-(shares * np.log2(shares)).sum() / 8 * self.symbols.sum())
        return self.delta


def compare(old: Path, new: Path) -> list[Delta]:
    """Every file of `new`, against what `old` offers to build it from."""
    before, after = (open_release(path, verify=False).manifest for path in (old, new))
    known = {entry.sha256 for entry in before.files}
    deltas = []
    for entry in after.files:
        delta = Delta(entry.name, entry.bytes)
        if entry.sha256 in known:
            delta.shared = True
        else:
            _take(delta, old, before, new, after)
        deltas.append(delta)
    return deltas


def _take(delta: Delta, old: Path, before: Manifest, new: Path, after: Manifest) -> None:
    coder, places = _Coder(delta), {tensor.name: tensor for tensor in before.tensors}
    tensors = {tensor.offset: tensor for tensor in after.tensors if tensor.file == delta.name}
    if not tensors:  # a graph or a text: small, and no tensors to line up
        coder.add(None, np.fromfile(new / delta.name, np.uint8))
    for tensor in tensors.values():
        was = places.get(tensor.name)
        alike = was is not None and (was.shape, was.dtype) == (tensor.shape, tensor.dtype)
        coder.add(_read(old, was) if alike and was is not None else None, _read(new, tensor))
    coder.end()


def _read(folder: Path, tensor: Tensor) -> Bytes:
    return np.fromfile(folder / tensor.file, np.uint8, tensor.bytes, offset=tensor.offset)


def summary(deltas: list[Delta]) -> dict[str, object]:
    """Bytes to fetch, all of the release and its first part alone, with and without deltas."""
    figures: dict[str, object] = {}
    for part, second in (("release", ()), ("first_part", (PLANE_LO, graph_name(8)))):
        wanted = [delta for delta in deltas if delta.name not in second]
        full = sum(delta.bytes for delta in wanted if not delta.shared)
        best = sum(min(delta.bytes, delta.zlib, delta.lzma) for delta in wanted if not delta.shared)
        entropy = sum(min(float(delta.bytes), delta.entropy) for delta in wanted if not delta.shared)
        figures[part] = {
            "bytes": sum(delta.bytes for delta in wanted),
            "to_fetch": full,
            "delta": best,
            "ratio": round(best / full, 4) if full else math.nan,
            "entropy_ratio": round(entropy / full, 4) if full else math.nan,
        }
    return figures


def perturb(model: Path, share: float, out: Path, seed: int = 0) -> None:
    """Copies a model folder with noise on every weight, of `share` times the root mean square of its tensor.

    Stored in the types of the source, so that a change below their step is lost as it would be.
    """
    import torch
    from safetensors.torch import load_file, save_file

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    shutil.copytree(model, out)
    for path in sorted(out.glob("*.safetensors")):
        tensors = load_file(path)
        for name, tensor in tensors.items():
            values = tensor.float()
            noise = torch.randn(values.shape, generator=generator) * (share * values.square().mean().sqrt())
            tensors[name] = (values + noise).to(tensor.dtype)
        save_file(tensors, path, {"format": "pt"})


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.transfer.deltas", description="What a delta would save.")
    parser.add_argument("--perturb", action="store_true", help="write OUT from MODEL with SHARE of noise instead")
    parser.add_argument("names", nargs="+", metavar="OLD NEW | MODEL SHARE OUT")
    options = parser.parse_args(arguments)
    if options.perturb:
        model, share, out = options.names
        perturb(Path(model), float(share), Path(out))
        return 0
    old, new = (Path(name) for name in options.names)
    deltas = compare(old, new)
    files = {
        delta.name: {name: getattr(delta, name) for name in ("bytes", "shared", "same", "zlib", "lzma")}
        | {"entropy": round(delta.entropy)}
        for delta in deltas
    }
    sys.stdout.write(json.dumps({"old": old.name, "new": new.name, **summary(deltas), "files": files}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
