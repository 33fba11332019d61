"""An encoder's weights by the names BERT gives them, one at a time, as float32.

Names are those of transformers' BertModel without the model's own prefix; older files say gamma and beta
where newer ones say weight and bias. Raises UnsupportedArchitecture naming a weight that is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from quantize.encoder.architecture import Encoder
from quantize.errors import UnsupportedArchitecture
from release.planes import Floats

_OLDER = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}


class Parameters:
    """Open weight files; a context manager."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._files: list[Any] = []
        self._owner: dict[str, Any] = {}

    def __enter__(self) -> Self:
        from safetensors import SafetensorError, safe_open

        for path in self._encoder.weight_files:
            try:
                file: Any = safe_open(str(path), framework="pt")
            except (SafetensorError, OSError) as error:
                raise UnsupportedArchitecture(f"{path} cannot be read ({error}): fetch it anew") from error
            self._files.append(file)
            self._owner.update(dict.fromkeys(file.keys(), file))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._owner.clear()
        self._files.clear()

    def __call__(self, name: str, *shape: int) -> Floats:
        """A weight of that shape."""
        found, values = self._find(name)
        if values.shape != shape:
            raise UnsupportedArchitecture(
                f"{self._folder}: {found} is {list(values.shape)}, its config says {list(shape)}"
            )
        return values

    def first_row(self, name: str, width: int) -> Floats:
        """The first of a table's rows of that width; how many there are does not matter."""
        row: Floats = self(name, len(self._find(name)[1]), width)[0]
        return row

    def _find(self, name: str) -> tuple[str, Floats]:
        for candidate in self._spellings(name):
            if candidate in self._owner:
                values: Floats = self._owner[candidate].get_tensor(candidate).float().numpy()
                return candidate, np.ascontiguousarray(values)
        raise UnsupportedArchitecture(f"{self._folder} has no weight {name}: its layout is not BERT's")

    @property
    def _folder(self) -> Path:
        return self._encoder.path

    def _spellings(self, name: str) -> Sequence[str]:
        older = name
        for new, old in _OLDER.items():
            older = older.replace(new, old)
        return [prefix + spelling for spelling in dict.fromkeys((name, older)) for prefix in ("", self._encoder.prefix)]
