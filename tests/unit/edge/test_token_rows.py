"""Raw tensors as rows of tokens: what is padding, and every way in which they do not fit, by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.openinference.token_rows import TokenRow, rows
from wire.errors import InvalidRequest, TooLarge
from wire.openinference.tensors import Tensor

ROWS = st.lists(st.lists(st.integers(0, 30_000), min_size=1, max_size=6), min_size=1, max_size=5)


def tensor(name: str, *lines: list[int], datatype: str = "INT64", shape: tuple[int, ...] | None = None) -> Tensor:
    flat = tuple(value for line in lines for value in line)
    return Tensor(name, datatype, shape or (len(lines), len(lines[0])), flat)


def of(*tensors: Tensor) -> dict[str, Tensor]:
    return {entry.name: entry for entry in tensors}


@given(ROWS, st.integers(0, 4))
def test_what_was_padded_comes_out_as_it_was(given_rows: list[list[int]], extra: int) -> None:
    """Rows padded to any common length, with a mask that says so, are the rows that went in."""
    width = max(map(len, given_rows)) + extra
    ids = tensor("input_ids", *([*row, *[7] * (width - len(row))] for row in given_rows))
    mask = tensor("attention_mask", *([1] * len(row) + [0] * (width - len(row)) for row in given_rows))
    types = tensor("token_type_ids", *([0] * (width - 1) + [1] for _ in given_rows))
    found = rows(of(mask, types, ids), 5)
    assert [list(row.ids) for row in found] == given_rows
    assert all(len(row.types) == len(row.ids) for row in found)


def test_without_a_mask_every_position_is_a_token_and_without_types_none_is_told() -> None:
    assert rows(of(tensor("input_ids", [5, 0], [6, 0])), 2) == (TokenRow((5, 0)), TokenRow((6, 0)))
    assert rows(of(tensor("input_ids", [5, 4]), tensor("token_type_ids", [0, 1])), 2) == (TokenRow((5, 4), (0, 1)),)


IDS = tensor("input_ids", [5, 6, 7], [8, 9, 0])


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ((tensor("input_ids", [1], datatype="INT32"),), "input_ids is INT32; it must be INT64"),
        ((tensor("input_ids", [1, 2], shape=(2,)),), r"input_ids has the shape \[2\]"),
        ((tensor("input_ids", [1, 2], shape=(1, 2, 1)),), r"input_ids has the shape \[1, 2, 1\]"),
        ((tensor("input_ids", [], shape=(2, 0)),), r"input_ids has the shape \[2, 0\]"),
        ((tensor("input_ids", [], shape=(0, 3)),), r"input_ids has the shape \[0, 3\]"),
        ((tensor("attention_mask", [1]),), "attention_mask goes with input_ids, which is missing"),
        ((IDS, tensor("attention_mask", [1, 1])), r"attention_mask has the shape \[1, 2\] and input_ids \[2, 3\]"),
        ((IDS, tensor("token_type_ids", [0, 1, 0])), r"token_type_ids has the shape \[1, 3\]"),
        ((IDS, tensor("attention_mask", [1, 1, 1], [1, 0, 1])), r"attention_mask\[1\] has padding before a token"),
        ((IDS, tensor("attention_mask", [0, 1, 1], [1, 1, 1])), r"attention_mask\[0\] has padding before a token"),
        ((IDS, tensor("attention_mask", [1, 1, 1], [0, 0, 0])), r"attention_mask\[1\] leaves no token"),
        ((IDS, tensor("attention_mask", [1, 1, 1], [1, 2, 0])), r"attention_mask\[1\] has 2; give 1"),
        ((IDS, tensor("attention_mask", [1, 1, -1], [1, 1, 0])), r"attention_mask\[0\] has -1"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tensors: tuple[Tensor, ...], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        rows(of(*tensors), 2)


def test_rows_are_bounded() -> None:
    with pytest.raises(TooLarge, match="input_ids has 3 rows; at most 2"):
        rows(of(tensor("input_ids", [1], [2], [3])), 2)
