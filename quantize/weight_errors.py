"""How far each nested matrix is from the weight it was made of, watched while it is made."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quantize.nest import ROWS_AT_ONCE, Nested, Nester
from release.planes import Floats, blocks, compose, dequantize

_LAYER = re.compile(r"\.layers?\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class WeightError:
    """Sums of squares of one matrix: its weights, and the errors of both widths."""

    name: str
    weight: float
    four: float
    eight: float

    @property
    def layer(self) -> int | None:
        found = _LAYER.search(self.name)
        return int(found[1]) if found else None


class Watched:
    """A nester that does what `inner` does and keeps what it did to each matrix."""

    def __init__(self, inner: Nester) -> None:
        self._inner = inner
        self.errors: list[WeightError] = []

    @property
    def method(self) -> str:
        return self._inner.method

    @property
    def text_digest(self) -> str:
        return self._inner.text_digest

    def nest(self, name: str, weight: Floats, block_size: int) -> Nested:
        """See Nester."""
        nested = self._inner.nest(name, weight, block_size)
        squares = np.zeros(3)
        for start in range(0, weight.shape[0], ROWS_AT_ONCE):
            part = nested.rows(start, start + ROWS_AT_ONCE)
            source, four = blocks(weight[start : start + ROWS_AT_ONCE], block_size), part.four
            eight = compose(four.codes, part.rest, four.scales, four.zeros, part.steps)
            gaps = (part.at_four_bits() - source, dequantize(*eight) - source)
            squares += [float(np.square(values).sum(dtype=np.float64)) for values in (source, *gaps)]
        self.errors.append(WeightError(name, *squares.tolist()))
        return nested


def by_layer(errors: Sequence[WeightError]) -> Mapping[int, tuple[float, float]]:
    """Per layer the relative root-mean-square error at 4 and at 8 bits."""
    layers: dict[int, list[WeightError]] = {}
    for error in errors:
        if error.layer is not None:
            layers.setdefault(error.layer, []).append(error)
    return {layer: (_relative(found, "four"), _relative(found, "eight")) for layer, found in sorted(layers.items())}


def _relative(errors: Sequence[WeightError], width: str) -> float:
    total = max(sum(error.weight for error in errors), 1e-30)
    return float((sum(getattr(error, width) for error in errors) / total) ** 0.5)
