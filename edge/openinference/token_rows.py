"""Rows of token ids out of a classifier's raw tensors, named as exporters of encoders name them.

In: `input_ids`, and beside it `attention_mask` and `token_type_ids`, all INT64 [n, length]. A mask says which
positions hold tokens: ones, then zeros to the right end; without one all do. Whatever is padding is dropped, since
the engine makes batches of its own. A mask of another form is refused: a hole cannot be dropped without moving
what stands behind it, and the positions are part of what a model reads.

Must not know: vocabularies and lengths of models, which their engines check.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from wire.errors import InvalidRequest, TooLarge
from wire.openinference.messages import TensorMetadata
from wire.openinference.tensors import Tensor

IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
NAMES = (IDS, MASK, TYPES)


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One element. `types` is empty where none were given."""

    ids: tuple[int, ...]
    types: tuple[int, ...] = ()


def inputs(takes_types: bool) -> tuple[TensorMetadata, ...]:
    """What a model takes."""
    return tuple(TensorMetadata(name, "INT64", (-1, -1)) for name in (NAMES if takes_types else NAMES[:2]))


def rows(given: Mapping[str, Tensor], max_batch: int) -> tuple[TokenRow, ...]:
    """One for each element of these tensors, which have the names of NAMES. Raises InvalidRequest, TooLarge."""
    for tensor in given.values():
        _demand_form(tensor, max_batch)
    if IDS not in given:
        raise InvalidRequest(f"input {', '.join(given)} goes with {IDS}, which is missing")
    shape = given[IDS].shape
    for name, tensor in given.items():
        if tensor.shape != shape:
            raise InvalidRequest(
                f"input {name} has the shape {list(tensor.shape)} and {IDS} {list(shape)}; they must be alike"
            )
    ids, types, mask = (_split(given.get(name)) for name in (IDS, TYPES, MASK))
    kept = [_tokens(row, index) for index, row in enumerate(mask)] or [shape[1]] * shape[0]
    return tuple(
        TokenRow(ids[index][:count], types[index][:count] if types else ()) for index, count in enumerate(kept)
    )


def _demand_form(tensor: Tensor, max_batch: int) -> None:
    name, shape = tensor.name, tensor.shape
    if tensor.datatype != "INT64":
        raise InvalidRequest(f"input {name} is {tensor.datatype}; it must be INT64")
    if len(shape) != 2 or min(shape) < 1:
        raise InvalidRequest(f"input {name} has the shape {list(shape)}; give [n, length], both from 1")
    if shape[0] > max_batch:
        raise TooLarge(f"input {name} has {shape[0]} rows; at most {max_batch} in one request")


def _split(tensor: Tensor | None) -> list[tuple[int, ...]]:
    """The rows of a tensor of integers; none of one that is not there."""
    if tensor is None:
        return []
    values, width = cast("tuple[int, ...]", tensor.values), tensor.shape[1]
    return [values[start : start + width] for start in range(0, len(values), width)]


def _tokens(mask: tuple[int, ...], index: int) -> int:
    """How many tokens a row's mask leaves. Raises InvalidRequest for any but ones and then zeros."""
    if odd := set(mask).difference((0, 1)):
        raise InvalidRequest(f"input {MASK}[{index}] has {min(odd)}; give 1 for a token and 0 for padding")
    count = sum(mask)
    if count == 0:
        raise InvalidRequest(f"input {MASK}[{index}] leaves no token; every row needs one")
    if 0 in mask[:count]:
        raise InvalidRequest(f"input {MASK}[{index}] has padding before a token; pad at the right end alone")
    return count
