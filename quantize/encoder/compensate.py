"""A nester that compensates an encoder's rounding errors for the texts it will classify.

As for decoders (`quantize.compensate`): the texts run through a layer, its weights are nested for the inputs
they see, and the texts run through the 4-bit layer to become the next one's input. Padding is left out of
what counts as input. Matrices must be asked for layer by layer, in the order of `quantize.encoder.build`.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

from quantize.compensate import nested_rows
from quantize.encoder.floats import FloatEncoder, padded
from quantize.encoder.graph import layer_name
from quantize.errors import QuantizeError
from quantize.gptq import compensate
from quantize.nest import Nested
from quantize.progress import Progress
from release.planes import Floats
from runtime.ort.classify import batches

MOST_TEXTS = 1024
# By the release's name of a matrix: the modules of a layer whose weights it stacks.
_MODULES: Mapping[str, tuple[str, ...]] = {
    "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention_out": ("attention.output.dense",),
    "up": ("intermediate.dense",),
    "down": ("output.dense",),
}


class CompensatingEncoder:
    """GPTQ over `encoder`, whose weights it replaces by their 4-bit ones: whoever needs them later loads anew.

    `texts` are drawn from by `seed`, `encode` gives a text's token ids. Raises QuantizeError without texts.
    """

    method = "gptq"

    def __init__(
        self,
        encoder: FloatEncoder,
        texts: Sequence[str],
        encode: Any,
        progress: Progress,
        *,
        threads: int = 1,
        seed: int = 0,
    ) -> None:
        if not texts:
            raise QuantizeError("errors are compensated on texts: there are none")
        chosen = random.Random(seed).sample(list(texts), min(len(texts), MOST_TEXTS))
        self.text_digest = hashlib.sha256("\0".join(chosen).encode()).hexdigest()
        self._layers: Any = encoder.model.encoder.layer
        self._threads, self._made, self._next = threads, dict[str, Nested](), 0
        rows = [encode(text) for text in chosen]
        progress.note(f"compensating rounding errors on {sum(map(len, rows))} tokens of {len(rows)} texts")
        self._states = list(_embedded(encoder.model, rows))

    def nest(self, name: str, weight: Floats, block_size: int) -> Nested:
        """See Nester."""
        while name not in self._made and self._next < len(self._layers):
            self._made = self._nest_layer(self._next, block_size)
            self._next += 1
        nested = self._made.pop(name, None)
        if nested is None or nested.four.codes.shape != (weight.shape[0], weight.shape[1] // block_size, block_size):
            raise QuantizeError(f"{name} was asked for out of turn, or is no matrix of this encoder")
        return nested

    def _nest_layer(self, index: int, block_size: int) -> dict[str, Nested]:
        import torch

        layer, made = self._layers[index], {}
        with torch.inference_mode():
            sums = self._covariances(layer)
            torch.set_num_threads(1)  # thousands of short steps: waiting for each other costs more than it brings
            for part, names in _MODULES.items():
                modules = [layer.get_submodule(name) for name in names]
                whole = torch.cat([module.weight for module in modules])
                planes = compensate(whole, sums[part], block_size)
                made[layer_name(index, part)] = nested_rows(planes, slice(0, len(whole)), block_size)
                for module, rows in zip(modules, planes.four.chunk(len(modules)), strict=True):
                    module.weight.copy_(rows)
            torch.set_num_threads(self._threads)
            self._states = [(layer(state, attention_mask=bias), bias, mask) for state, bias, mask in self._states]
        return made

    def _covariances(self, layer: Any) -> dict[str, Any]:
        """Sums of x xᵀ over every token that is no padding, of the input of each matrix."""
        import torch

        kept: Any = None
        sums: dict[str, Any] = {}

        def add(part: str, given: Any) -> None:
            rows = given[kept]
            total = sums.setdefault(part, torch.zeros(rows.shape[1], rows.shape[1]))
            total.addmm_(rows.T, rows)

        hooks = [
            layer.get_submodule(names[0]).register_forward_pre_hook(lambda _, given, part=part: add(part, given[0]))
            for part, names in _MODULES.items()
        ]
        for state, bias, mask in self._states:
            kept = mask
            layer(state, attention_mask=bias)
        for hook in hooks:
            hook.remove()
        return sums


def _embedded(model: Any, rows: Sequence[Sequence[int]]) -> Any:
    """Per batch: the first layer's input, what to add to attention's scores, and which tokens are none of padding."""
    import torch

    for batch in batches([len(row) for row in rows]):
        tokens, mask = padded([rows[index] for index in batch])
        with torch.inference_mode():
            state = model.embeddings(input_ids=tokens)
        bias = torch.zeros(mask.shape).masked_fill(mask == 0, float("-inf"))[:, None, None, :]
        yield state, bias, mask.bool()
