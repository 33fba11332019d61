"""Models that give what a test made up: logits by token id, or by text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from release.planes import Floats


@dataclass
class TableModel:
    """A language model whose logits after a token are that token's row of `table` [V, V]."""

    table: Floats
    starts: list[int] = field(default_factory=list)

    def logits(self, token_ids: Sequence[int], start: int) -> Floats:
        self.starts.append(start)
        return self.table[list(token_ids)].copy()


@dataclass
class TableClassifier:
    """A classifier that knows the logits of every text it will be given."""

    labels: Sequence[str]
    known: Mapping[str, Sequence[float]]

    def logits(self, text: str) -> Floats:
        return np.asarray(self.known[text], np.float32)
