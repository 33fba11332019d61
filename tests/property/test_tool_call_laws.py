"""Laws of taking calls out of a stream."""

from __future__ import annotations

import itertools
import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.tool_calls import CLOSE, OPEN, CallSplitter

NAMES = ("weather", "stop")
plain = st.text(alphabet='ab <>/{}[]"\n_tolcuü', max_size=30)
words = st.text(alphabet='ab "\\ü{}<>/\n', max_size=8)
value = st.recursive(
    st.none() | st.booleans() | st.integers() | words | st.just(CLOSE) | st.just(OPEN),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(words, value, max_size=3)


@st.composite
def call(draw: st.DrawFn) -> tuple[str, str, str]:
    written = json.dumps(draw(arguments), ensure_ascii=draw(st.booleans()))
    name = draw(st.sampled_from(NAMES))
    return f'{OPEN}\n{{"name": "{name}", "arguments": {written}}}\n{CLOSE}', name, written


def split(pieces: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    splitter = CallSplitter(NAMES)
    shown = [splitter.push(piece) for piece in pieces]
    rest, calls = splitter.finish()
    return [*shown, rest], [(call.name, call.arguments) for call in calls]


def cut(text: str, at: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(edge % (len(text) + 1) for edge in at)})
    return [text[begin:end] for begin, end in itertools.pairwise(edges)]


written = call().map(lambda made: made[0])
texts = plain | written | st.tuples(plain, written, plain).map("".join)


@settings(suppress_health_check=[HealthCheck.too_slow])  # making what is to be cut takes longer than cutting it
@given(text=texts, at=st.lists(st.integers(0, 500), max_size=12))
def test_how_the_text_was_cut_does_not_change_what_comes_of_it(text: str, at: list[int]) -> None:
    whole_shown, whole_calls = split([text])
    shown, calls = split(cut(text, at))
    assert ("".join(shown), calls) == ("".join(whole_shown), whole_calls)


@given(text=plain, at=st.lists(st.integers(0, 100), max_size=8))
def test_without_a_call_the_text_is_what_it_was(text: str, at: list[int]) -> None:
    shown, calls = split(cut(text, at))
    assert calls or "".join(shown) == text


@given(made=call(), at=st.lists(st.integers(0, 500), max_size=12))
def test_a_call_is_found_whatever_its_arguments_and_nothing_of_it_is_shown(
    made: tuple[str, str, str], at: list[int]
) -> None:
    text, name, written = made
    shown, calls = split(cut(f"Well, {text}", at))
    assert "".join(shown) == "Well, "
    assert calls == [(name, written)]
