"""How far each nested matrix is from the weight it was made of, watched while it is made."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quantize.nest import Nested, Nester
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
        source, four = blocks(weight, block_size), nested.four
        eight = compose(four.codes, nested.rest, four.scales, four.zeros, nested.steps)
        self.errors.append(
            WeightError(
                name,
                weight=_squares(source),
                four=_squares(dequantize(four.codes, four.scales, four.zeros) - source),
                eight=_squares(dequantize(*eight) - source),
            )
        )
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


def _squares(values: Floats) -> float:
    return float(np.square(values).sum(dtype=np.float64))
