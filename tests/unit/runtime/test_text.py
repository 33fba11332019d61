"""Incremental text: whole characters only, stop sequences across token borders."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.text import Detokenizer, StopMatcher, TextStream


def bytes_decode(ids: Sequence[int]) -> str:
    """A byte-level tokenizer: every token is one byte."""
    return bytes(ids).decode("utf-8", errors="replace")


def spaced_decode(ids: Sequence[int]) -> str:
    """Like SentencePiece: every token brings a space, and the text's first one is dropped."""
    return "".join(f" w{i}" for i in ids).removeprefix(" ")


def per_byte_fallback(ids: Sequence[int]) -> str:
    """Like SentencePiece's byte fallback: a run of bytes is a text or nothing but replacements."""
    try:
        return bytes(ids).decode()
    except UnicodeDecodeError:
        return "\ufffd" * len(ids)


def pieces(decode: object, ids: Sequence[int]) -> list[str]:
    stream = Detokenizer(decode)  # type: ignore[arg-type]
    return [*(stream.push([i]) for i in ids), stream.finish()]


def test_a_character_of_several_tokens_comes_out_once_and_whole() -> None:
    out = pieces(bytes_decode, "a€😀b".encode())
    assert "".join(out) == "a€😀b"
    assert not any("\ufffd" in piece for piece in out)


def test_the_space_between_tokens_survives_although_the_first_one_is_dropped() -> None:
    assert pieces(spaced_decode, [1, 2, 3]) == ["w1", " w2", " w3", ""]


def test_pushing_nothing_keeps_the_context() -> None:
    stream = Detokenizer(spaced_decode)
    assert [stream.push(ids) for ids in ([1], [], [], [2])] == ["w1", "", "", " w2"]


def test_two_neighbouring_characters_of_byte_tokens() -> None:
    out = pieces(per_byte_fallback, "😀😀".encode())
    assert "".join(out) == "😀😀"


def test_bytes_that_are_no_text_are_shown_as_replacements_at_the_end() -> None:
    assert "".join(pieces(bytes_decode, b"ok\xff")) == "ok\ufffd"


def test_endless_broken_bytes_are_let_go_so_that_the_window_stays_small() -> None:
    stream = Detokenizer(bytes_decode)
    shown = "".join(stream.push([0xFF]) for _ in range(100))
    assert len(shown) > 60


def test_a_stop_sequence_across_pieces_is_never_shown() -> None:
    matcher = StopMatcher(["</end>"])
    assert [matcher.push(x) for x in ("one <", "/e", "nd> two", "three")] == ["one ", "", "", ""]
    assert matcher.stopped


def test_a_false_start_of_a_stop_sequence_is_shown_after_all() -> None:
    matcher = StopMatcher(["\n\n"])
    assert [matcher.push(x) for x in ("a\n", "b\n")] == ["a", "\nb"]
    assert matcher.finish() == "\n"
    assert not matcher.stopped


def test_the_stop_sequence_that_completes_first_counts() -> None:
    assert StopMatcher(["abcd", "b"]).push("xabcd") == "xa"


def test_a_stream_ends_where_the_stop_sequence_begins() -> None:
    stream = TextStream(bytes_decode, ["€!"])
    texts = []
    for i in "5 €! and more".encode():
        piece = stream.push([i])
        texts.append(piece.text)
        if piece.stopped:
            break
    assert "".join(texts) == "5 "
    assert stream.finish().text == ""


def test_what_is_held_at_the_end_belongs_to_the_answer() -> None:
    stream = TextStream(bytes_decode, ["STOP"])
    shown = "".join(stream.push([i]).text for i in b"fuel STO")
    assert shown + stream.finish().text == "fuel STO"
