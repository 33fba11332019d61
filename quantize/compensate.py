"""A nester that compensates rounding errors for the inputs a layer really sees.

Goes through the model once, layer by layer (`quantize.walk`): a calibration text runs through a layer as it
is, which gives the covariance of every weight's inputs; the weights are nested (`quantize.gptq`), and the
text runs through the 4-bit layer to become the next one's input. Layers are reached in the order of the
exported graph; the head comes last, for the outputs of the 4-bit layers.

A weight that comes from a 4-bit file keeps its own grid (`quantize.grid`). The embedding, where it is not the
head, is rounded: its inputs are single tokens. Any other matrix without known inputs is rounded too, which a
note and `method` say.
Must not know: graphs, files of a release.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from quantize.architecture import SourceModel
from quantize.calibration_text import LENGTH, sequences, text_digest
from quantize.gptq import Planes, compensate, compensate_with
from quantize.grid import source_grid
from quantize.nest import Nested, Quantized, RoundToNearest, by_rows, stacked
from quantize.progress import Progress
from quantize.walk import Walk
from release.planes import Codes, Floats

_LAYER = re.compile(r"\.layers\.(\d+)\.(.+)$")
_HEAD, _EMBEDDING = "lm_head", "model.embed_tokens"
_QKV, _UP = ("attn.q_proj", "attn.k_proj", "attn.v_proj"), ("mlp.gate_proj", "mlp.up_proj")
# Weights that see the same input are nested together; named as the exporter names them, packed or not.
_PACKED: Mapping[str, tuple[str, ...]] = {"attn.qkv_proj": _QKV, "mlp.gate_up_proj": _UP}
# Packed in some sources' layers, never in the exporter's graph; the parts are of equal size.
_TAKEN_APART: Mapping[str, tuple[str, ...]] = {"mlp.gate_up_proj": _UP}
_ALONE = ("attn.o_proj", "mlp.down_proj")


class Compensating:
    """GPTQ over the model in `source`; matrices must be asked for layer by layer, the head after them.

    Raises QuantizeError where the model cannot be loaded or `text` is too short. torch's threads are
    bounded to `threads` for the whole process.
    """

    def __init__(self, source: SourceModel, text: str, *, threads: int, progress: Progress) -> None:
        self._text_digest = text_digest(text)
        length = min(LENGTH, source.architecture.context_length)
        self._source, self._threads, self._progress = source, threads, progress
        self._tokens = sequences(text, source.path, length)
        self._walk: Walk | None = None
        self._layer, self._nested = -1, dict[str, tuple[Floats, Nested]]()
        self._on_grid, self._rounded = 0, list[str]()

    @property
    def method(self) -> str:
        kept = f"gptq, {self._on_grid} groups of weights on the source's grid" if self._on_grid else "gptq"
        return f"{kept}; {RoundToNearest(search=True).method}: {', '.join(self._rounded)}" if self._rounded else kept

    @property
    def text_digest(self) -> str:
        return self._text_digest

    def nest(self, name: str, weight: Floats, block_size: int) -> Nested:
        """See Nester."""
        if name == _EMBEDDING:
            return RoundToNearest(search=True).nest(name, weight, block_size)
        if name == _HEAD:
            return self._head(weight, block_size)
        found = _LAYER.search(name)
        if found is None or not self._reach(int(found[1]), block_size):
            return self._round(name, weight, block_size)
        names = (found[2],) if found[2] in self._nested else _PACKED.get(found[2], (found[2],))
        if not all(part in self._nested for part in names):
            return self._round(name, weight, block_size)
        parts = [self._nested.pop(part) for part in names]
        if not np.array_equal(np.concatenate([part for part, _ in parts]), weight):
            return self._round(name, weight, block_size)
        return stacked([nested for _, nested in parts])

    def _round(self, name: str, weight: Floats, block_size: int) -> Nested:
        self._progress.note(f"{name} has no known inputs: it is rounded to nearest")
        self._rounded.append(name)
        return RoundToNearest(search=True).nest(name, weight, block_size)

    def _begun(self) -> Walk:
        if self._walk is None:
            count = len(self._tokens) * len(self._tokens[0])
            self._progress.note(f"compensating rounding errors on {count} tokens of calibration text")
            self._walk = Walk(self._source, self._tokens, self._threads)
        return self._walk

    def _reach(self, index: int, block_size: int) -> bool:
        """Nests layers up to `index`; False where that one is behind or not there."""
        walk = self._begun()

        def nest(layer: Any, covariances: Mapping[str, Any]) -> None:
            self._nested = self._nest_layer(layer, covariances, block_size)

        while self._layer < index and self._layer + 1 < walk.layers:
            self._layer += 1
            walk.step(lambda layer: {parts[0]: _module(layer, parts[0]) for parts in _groups(layer)}, nest)
        return index == self._layer

    def _nest_layer(
        self, layer: Any, covariances: Mapping[str, Any], block_size: int
    ) -> dict[str, tuple[Floats, Nested]]:
        """Nests a layer's weights and puts the 4-bit ones in their place."""
        import torch

        found: dict[str, tuple[Floats, Nested]] = {}
        for parts in _groups(layer):
            names = _TAKEN_APART.get(parts[0], parts)
            weights = [_module(layer, part).weight.detach() for part in parts]
            whole = torch.cat(weights)
            weights = [half for weight in weights for half in weight.chunk(len(names) // len(parts))]
            grid = source_grid(whole, block_size)
            self._on_grid += grid is not None
            planes = compensate(whole, covariances[parts[0]], block_size, grid)
            start = 0
            for part, weight in zip(names, weights, strict=True):
                rows = slice(start, start + len(weight))
                found[part] = weight.numpy().copy(), nested_rows(planes, rows, block_size)
                weight.copy_(planes.four[rows])
                start = rows.stop
        return found

    def _head(self, weight: Floats, block_size: int) -> Nested:
        import torch

        walk = self._begun()
        if self._layer + 1 < walk.layers:
            return self._round(_HEAD, weight, block_size)
        factor = walk.outputs()

        def nest(rows: Floats) -> Nested:
            with torch.inference_mode():
                planes = compensate_with(torch.from_numpy(rows), factor, block_size)
                return nested_rows(planes, slice(0, len(rows)), block_size)

        return by_rows(weight, nest)


def _groups(layer: Any) -> Iterator[tuple[str, ...]]:
    """The weights of a layer, those with the same input together."""
    for packed, parts in _PACKED.items():
        yield (packed,) if _has(layer, packed) else parts
    yield from ((part,) for part in _ALONE)


def _has(layer: Any, part: str) -> bool:
    owner, _, name = part.replace("attn.", "self_attn.").rpartition(".")
    return hasattr(layer.get_submodule(owner), name)


def _module(layer: Any, part: str) -> Any:
    return layer.get_submodule(part.replace("attn.", "self_attn."))


def nested_rows(planes: Planes, rows: slice, block_size: int) -> Nested:
    """Some rows of transposed planes as a release keeps them."""

    def codes(values: Any) -> Codes:
        kept: Codes = values[:, rows].T.contiguous().numpy().reshape(rows.stop - rows.start, -1, block_size)
        return kept

    def whole(values: Any) -> Codes:
        return np.ascontiguousarray(values[:, rows].T.numpy(), np.uint8)

    def floats(values: Any) -> Floats:
        return np.ascontiguousarray(values[:, rows].T.numpy(), np.float32)

    four = Quantized(codes(planes.codes), floats(planes.scales), whole(planes.zeros))
    offsets = None if planes.offsets is None else whole(planes.offsets)
    units = None if planes.units is None else floats(planes.units)
    return Nested(four, codes(planes.rest), whole(planes.steps), offsets, units)
