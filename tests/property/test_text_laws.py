"""Laws of incremental text: grouping does not matter, nothing is lost, nothing after a stop is shown."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from runtime.text import Detokenizer, StopMatcher


def _decode(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", errors="replace")


def _groups(items: Sequence[int], sizes: list[int]) -> list[Sequence[int]]:
    groups, at = [], 0
    for size in sizes:
        groups.append(items[at : at + size])
        at += size
    return [*groups, items[at:]]


_sizes = st.lists(st.integers(0, 5), max_size=12)


@given(st.text(), _sizes)
def test_pieces_joined_are_the_whole_text(text: str, sizes: list[int]) -> None:
    stream = Detokenizer(_decode)
    shown = "".join(stream.push(group) for group in _groups(text.encode(), sizes))
    assert shown + stream.finish() == text


@given(st.binary(max_size=24))
def test_any_bytes_decode_as_they_do_at_once(data: bytes) -> None:
    stream = Detokenizer(_decode)
    assert "".join(stream.push([byte]) for byte in data) + stream.finish() == _decode(data)


@given(st.text("ab<", max_size=30), st.lists(st.text("ab<", min_size=1, max_size=4), max_size=3), _sizes)
def test_grouping_does_not_change_where_an_answer_stops(text: str, stops: list[str], sizes: list[int]) -> None:
    def run(pieces: Sequence[str]) -> tuple[str, bool]:
        matcher = StopMatcher(stops)
        shown = "".join(matcher.push(piece) for piece in pieces)
        return (shown, True) if matcher.stopped else (shown + matcher.finish(), False)

    grouped: list[str] = ["".join(map(chr, group)) for group in _groups([ord(c) for c in text], sizes)]
    shown, stopped = run(grouped)
    assert (shown, stopped) == run(list(text))
    assert not any(stop in shown for stop in stops)
    assert stopped == any(stop in text for stop in stops)
