"""A nester that compensates rounding errors for the inputs a layer really sees.

Walks the model once, layer by layer: a calibration text runs through a layer as it is, which gives the
covariance of every weight's inputs; the weights are nested (`quantize.gptq`), and the text runs through
the 4-bit layer to become the next one's input, so that a layer also makes up for the errors before it.
Layers are reached in the order of the exported graph, and only one is held in float32.

A matrix it has no inputs for is rounded to nearest, which a note and `method` say.
Must not know: graphs, files of a release.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from quantize.architecture import SourceModel
from quantize.calibration_text import LENGTH, sequences, text_digest
from quantize.errors import QuantizeError
from quantize.gptq import Planes, compensate
from quantize.nest import Nested, Quantized, RoundToNearest
from quantize.progress import Progress
from release.planes import Codes, Floats

_LAYER = re.compile(r"\.layers\.(\d+)\.(.+)$")
# Weights that see the same input are nested together; named as the exporter names them, packed or not.
_GROUPS: tuple[tuple[str, ...], ...] = (
    ("attn.q_proj", "attn.k_proj", "attn.v_proj"),
    ("attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)
_PACKED: Mapping[str, tuple[str, ...]] = {"attn.qkv_proj": _GROUPS[0], "mlp.gate_up_proj": _GROUPS[2]}


class Compensating:
    """GPTQ over the model in `source`; matrices must be asked for layer by layer.

    Raises QuantizeError where the model cannot be loaded or `text` is too short. torch's threads are
    bounded to `threads` for the whole process.
    """

    def __init__(self, source: SourceModel, text: str, *, threads: int, progress: Progress) -> None:
        self._text_digest = text_digest(text)
        length = min(LENGTH, source.architecture.context_length)
        self._source, self._threads, self._progress = source, threads, progress
        self._tokens = sequences(text, source.path, length)
        self._walk: Iterator[Mapping[str, tuple[Floats, Nested]]] | None = None
        self._layer, self._nested = -1, dict[str, tuple[Floats, Nested]]()
        self._rounded: list[str] = []

    @property
    def method(self) -> str:
        return f"gptq; {RoundToNearest(search=True).method}: {', '.join(self._rounded)}" if self._rounded else "gptq"

    @property
    def text_digest(self) -> str:
        return self._text_digest

    def nest(self, name: str, weight: Floats, block_size: int) -> Nested:
        found = _LAYER.search(name)
        if found is None or int(found[1]) < self._layer:
            return self._round(name, weight, block_size)
        while self._layer < int(found[1]):
            if not self._advance(block_size):
                return self._round(name, weight, block_size)
        names = _PACKED.get(found[2], (found[2],))
        if not all(part in self._nested for part in names):
            return self._round(name, weight, block_size)
        parts = [self._nested.pop(part) for part in names]
        if not np.array_equal(np.concatenate([part for part, _ in parts]), weight):
            return self._round(name, weight, block_size)
        return _stacked([nested for _, nested in parts])

    def _round(self, name: str, weight: Floats, block_size: int) -> Nested:
        self._progress.note(f"{name} has no known inputs: it is rounded to nearest")
        self._rounded.append(name)
        return RoundToNearest(search=True).nest(name, weight, block_size)

    def _advance(self, block_size: int) -> bool:
        if self._walk is None:
            count = len(self._tokens) * len(self._tokens[0])
            self._progress.note(f"compensating rounding errors on {count} tokens of calibration text")
            self._walk = _walk(self._source, self._tokens, self._threads, block_size)
        following = next(self._walk, None)
        self._layer += 1
        self._nested = dict(following or {})
        return following is not None


def _walk(
    source: SourceModel, tokens: Sequence[Sequence[int]], threads: int, block_size: int
) -> Iterator[Mapping[str, tuple[Floats, Nested]]]:
    """The nested weights of each layer in turn, beside the weights they were made from."""
    import torch

    torch.set_num_threads(threads)
    body = _load(source)
    with torch.inference_mode():
        states = [body.embed_tokens(torch.tensor([piece])).float() for piece in tokens]
        forward = _forward(body, states[0])
    for index in range(len(body.layers)):
        with torch.inference_mode():
            layer = body.layers[index].float()
            covariances = _covariances(layer, states, forward)
            torch.set_num_threads(1)  # thousands of short steps: waiting for each other costs more than it brings
            made = _nest_layer(layer, covariances, block_size)
            torch.set_num_threads(threads)
            states = [forward(layer, state) for state in states]
            body.layers[index] = torch.nn.Identity()  # its memory goes
        yield made


def _load(source: SourceModel) -> Any:
    """The decoder without its head, in the folder's own precision."""
    from transformers import AutoModel
    from transformers.utils import logging

    logging.disable_progress_bar()  # whoever calls shows the progress
    try:
        return AutoModel.from_pretrained(source.path, dtype="auto", local_files_only=True).eval()
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise QuantizeError(
            f"{source.path} cannot be loaded to compensate its rounding errors ({error}); "
            "--method rtn builds without loading it"
        ) from error


def _forward(body: Any, state: Any) -> Callable[[Any, Any], Any]:
    """What runs one layer over one sequence of the length of `state`."""
    import torch

    length = state.shape[1]
    positions = body.rotary_emb(state, torch.arange(length)[None])
    mask = torch.full((1, 1, length, length), float("-inf")).triu(1)

    def forward(layer: Any, given: Any) -> Any:
        made = layer(given, attention_mask=mask, position_embeddings=positions)
        return made[0] if isinstance(made, tuple) else made

    return forward


def _covariances(layer: Any, states: Sequence[Any], forward: Callable[[Any, Any], Any]) -> list[Any]:
    """Sums of x xᵀ over every input of each group of weights."""
    import torch

    modules = [_module(layer, group[0]) for group in _GROUPS]
    sums = [torch.zeros(module.in_features, module.in_features) for module in modules]

    def add(index: int, given: Any) -> None:
        rows = given.flatten(0, -2)
        sums[index].addmm_(rows.T, rows)

    hooks = [
        module.register_forward_pre_hook(lambda _, given, index=index: add(index, given[0]))
        for index, module in enumerate(modules)
    ]
    for state in states:
        forward(layer, state)
    for hook in hooks:
        hook.remove()
    return sums


def _nest_layer(layer: Any, covariances: Sequence[Any], block_size: int) -> dict[str, tuple[Floats, Nested]]:
    """Nests a layer's weights and puts the 4-bit ones in their place."""
    import torch

    found: dict[str, tuple[Floats, Nested]] = {}
    for group, covariance in zip(_GROUPS, covariances, strict=True):
        weights = [_module(layer, part).weight.detach() for part in group]
        planes = compensate(torch.cat(weights), covariance, block_size)
        start = 0
        for part, weight in zip(group, weights, strict=True):
            rows = slice(start, start + len(weight))
            found[part] = weight.numpy().copy(), _nested(planes, rows, block_size)
            weight.copy_(planes.four[rows])
            start = rows.stop
    return found


def _module(layer: Any, part: str) -> Any:
    return layer.get_submodule(part.replace("attn.", "self_attn."))


def _nested(planes: Planes, rows: slice, block_size: int) -> Nested:
    """Some rows of transposed planes as a release keeps them."""

    def codes(values: Any) -> Codes:
        kept: Codes = values[:, rows].T.contiguous().numpy().reshape(rows.stop - rows.start, -1, block_size)
        return kept

    def whole(values: Any) -> Codes:
        return np.ascontiguousarray(values[:, rows].T.numpy(), np.uint8)

    scales = np.ascontiguousarray(planes.scales[:, rows].T.numpy(), np.float32)
    four = Quantized(codes(planes.codes), scales, whole(planes.zeros))
    return Nested(four, codes(planes.rest), whole(planes.steps))


def _stacked(parts: Sequence[Nested]) -> Nested:
    four = Quantized(
        np.concatenate([part.four.codes for part in parts]),
        np.concatenate([part.four.scales for part in parts]),
        np.concatenate([part.four.zeros for part in parts]),
    )
    return Nested(four, np.concatenate([part.rest for part in parts]), np.concatenate([part.steps for part in parts]))
