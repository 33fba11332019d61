"""JSON that others wrote: what is read, and in which words the rest is refused."""

from __future__ import annotations

import contextlib
import json
import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.foreign_json import MOST_DIGITS, BadNumber, NotJson, TooDeep, read, read_at, read_with_infinities

_NUMBERS = st.integers(-(10**90), 10**90) | st.floats(allow_nan=False, allow_infinity=False)
_DOCUMENTS = st.recursive(
    st.none() | st.booleans() | _NUMBERS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)
_LONG = "9" * (MOST_DIGITS + 1)


@given(_DOCUMENTS)
def test_what_can_be_written_is_read_as_it_was(document: Any) -> None:
    text = json.dumps(document)
    assert read(text) == read(text.encode()) == read_with_infinities(text.encode()) == document
    assert read_at(f"  {text}", 2) == (document, 2 + len(text))


REFUSED: list[tuple[str, type[NotJson], str]] = [
    ("", NotJson, "Expecting value at character 0"),
    ("{", NotJson, "at character 1"),
    ("[" * 200_000, TooDeep, "nested too deeply"),
    ("NaN", NotJson, "NaN is not JSON"),
    ('{"a": -Infinity}', NotJson, "-Infinity is not JSON"),
    ('{"a": 1e999}', BadNumber, "a: the number 1e999 is too large"),
    ('{"a": {"b": [0, {"c": 1}, -1e999, 1e888]}}', BadNumber, "a.b[2]: the number -1e999 is too large"),
    (f'[1, {{"n": {_LONG}}}]', BadNumber, f"[1].n: a number of {MOST_DIGITS + 1} digits is too long"),
    (f"-{_LONG}", BadNumber, f"a number of {MOST_DIGITS + 1} digits"),
    ('{"a": 1e999, "a": 1}', BadNumber, "the number 1e999"),
]


@pytest.mark.parametrize(("text", "kind", "words"), REFUSED)
def test_a_refusal_says_where_or_why(text: str, kind: type[NotJson], words: str) -> None:
    with pytest.raises(NotJson) as refused:
        read(text)
    assert type(refused.value) is kind
    assert str(refused.value).startswith(words) or words in str(refused.value)
    assert len(str(refused.value)) < 200


def test_other_encodings_than_utf_8_are_refused_and_a_byte_order_mark_is_not() -> None:
    for encoding in ("utf-16", "utf-16-le", "utf-32"):
        with pytest.raises(NotJson):
            read_with_infinities(("9" * 5000).encode(encoding))
    assert read("\ufeff[1]".encode()) == [1]


def test_as_many_digits_as_there_may_be_are_read_with_either_sign() -> None:
    most = int("9" * MOST_DIGITS)
    assert read(f"[{most}, {-most}]") == [most, -most]


def test_a_name_as_long_as_a_body_is_cut_and_one_that_is_no_text_replaced() -> None:
    many = "[" + "1," * 9_999 + "1e999]"
    begun = time.thread_time()
    for text in ('{"' + "k" * 1_000_000 + f'": {many}}}', f'{{"a\\ud800\\n": {many}}}'):
        with pytest.raises(BadNumber) as refused:
            read(text)
        assert len(str(refused.value)) < 200
    assert str(refused.value).startswith("a??[9999]: the number 1e999")
    assert time.thread_time() - begun < 0.5


def test_infinities_are_kept_where_they_may_be() -> None:
    told = read_with_infinities(f'[1e999, -Infinity, {_LONG}, -{_LONG}, 7, "x"]'.encode())
    assert told == [math.inf, -math.inf, math.inf, -math.inf, 7, "x"]
    assert math.isnan(read_with_infinities(b"NaN"))
    for broken in (b"{", b"\xff", b"[" * 200_000):
        with pytest.raises(NotJson):
            read_with_infinities(broken)


@pytest.mark.parametrize("reader", [read, read_with_infinities])
def test_digits_cost_what_other_text_costs(reader: Any) -> None:
    text = b"[" + b",".join([b"1" * 4299] * 2000) + b"]"
    begun = time.thread_time()
    with contextlib.suppress(BadNumber):
        reader(text)
    assert time.thread_time() - begun < 0.15  # 0.27 s when they were built
