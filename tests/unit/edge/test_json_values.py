"""A body's values are counted before they are built: exactly, and without the memory that building would take."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.http.body import parse_json
from edge.http.json_values import more_values_than
from wire.errors import InvalidRequest, TooLarge

TEXTS = st.text(st.sampled_from('a,[]{}:"\\ é\n'), max_size=8)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=40,
)


def values(document: Any) -> int:
    inside = list(document.values()) if isinstance(document, dict) else document if isinstance(document, list) else []
    return len(inside) + sum(values(part) for part in inside)


@given(DOCUMENTS, st.sampled_from([None, 1]), st.booleans(), st.integers(1, 200))
def test_the_count_of_json_is_exact(document: Any, indent: int | None, ascii_only: bool, beginning: int) -> None:
    """more_values_than(json(d), m) = (values(d) > m), wherever its first look ends"""
    data = json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode()
    count = values(document)
    for most in range(max(count - 3, 1), count + 4):
        assert more_values_than(data, most, beginning) is (count > most)


MIB4 = 4 << 20
LARGE = [
    ("empty lists", b"[" + b"[]," * (MIB4 // 3 - 1) + b"[]]"),
    ("numbers", b"[" + b"1," * (MIB4 // 2 - 2) + b"1]"),
    ("texts", b"[" + b'"",' * (MIB4 // 3 - 1) + b'""]'),
    ("objects", b"[" + b'{"":1},' * (MIB4 // 7 - 1) + b"{}]"),
    ("blanks between", b"[" + b"1 , " * (MIB4 // 4 - 1) + b"1]"),
]


@pytest.mark.parametrize(("name", "body"), LARGE)
def test_a_body_of_too_many_values_is_refused_unbuilt(name: str, body: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge, match="20000 values"):
            parse_json(body)
        assert tracemalloc.get_traced_memory()[1] < 3 * MIB4, name
    finally:
        tracemalloc.stop()


def test_text_full_of_commas_and_brackets_is_no_value() -> None:
    said = 'a, b: {c: [1, 2]}, "d", \\" ' * 20_000
    assert parse_json(json.dumps({"messages": [{"content": said}]}).encode())["messages"][0]["content"] == said


@pytest.mark.parametrize("spelled", ["\\ud800", "\\uDFFF", "\\uD83D x", "\\udE00\\ud83d"])
def test_half_a_character_is_refused_wherever_it_stands(spelled: str) -> None:
    for body in (f'{{"content": "{spelled}"}}', f'{{"{spelled}": 1}}', f'["a", ["{spelled}"]]'):
        with pytest.raises(InvalidRequest, match="surrogate"):
            parse_json(body.encode())


def test_a_whole_character_may_be_spelled_as_a_pair() -> None:
    assert parse_json(b'{"content": "\\ud83d\\uDE00, \\\\ud800"}') == {"content": "\U0001f600, \\ud800"}
