"""How many values a JSON body holds, found before any of them is built: building is what a small body can make long.

Pure. Every step is a pass over the bytes in C, first over a beginning, so that a body full of values is refused by its
beginning and only one of few values is looked at as a whole: of 4 MiB that takes some milliseconds. The verdict is
exact for what is JSON. For what is not it may be any, and whoever builds it will say so.
"""

from __future__ import annotations

_BLANKS = b" \t\r\n"
_BEGINNING = 128 << 10
_GROWTH = 6


def more_values_than(data: bytes, most: int, beginning: int = _BEGINNING) -> bool:
    """Whether the lists and objects of `data` hold more than `most` values."""
    if len(data) <= 2 * most:  # two bytes are the least that a value takes
        return False
    while beginning < len(data):
        # The last list of a beginning may be one that is empty.
        if _holds_more(data[:beginning], most + 1):
            return True
        beginning *= _GROWTH
    return _holds_more(data, most)


def unclosed(data: bytes) -> int:
    """About how many lists and objects are open where the first look at a body ends."""
    data = data[:_BEGINNING]
    return _count(data, b"[{") - _count(data, b"]}")


def _holds_more(data: bytes, most: int) -> bool:
    # Text may hold commas too, so the first count is the most it can be.
    if _count(data, b",[{") <= most:
        return False
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in data else data
    # Each value is at most one text and has at most one key; both have two quotes.
    if _count(plain, b'"') > 4 * most + 2:
        return True
    outside = b'"'.join(plain.split(b'"')[::2]).translate(None, _BLANKS)
    # A list or object of n > 0 values has n - 1 commas and one opening.
    return _count(outside, b",[{") - outside.count(b"[]") - outside.count(b"{}") > most


def _count(data: bytes, marks: bytes) -> int:
    """In time that does not depend on how many there are."""
    return len(data) - len(data.translate(None, marks))
