"""Calls in a model's text: what is one, what is text after all, and that no half of one is ever shown."""

from __future__ import annotations

import json

import pytest

from runtime.tool_calls import BARE, BARE_PARAMETERS, LISTED, TAGGED, Call, CallSplitter, form_of, parse_calls

NAMES = ("weather", "time_of_day")
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Graz"}}\n</tool_call>'
WEATHER = Call("weather", '{"city": "Graz"}')

ANSWERS: list[tuple[str, str, tuple[Call, ...]]] = [
    ("Just text, with < and <tool and {braces}.", "Just text, with < and <tool and {braces}.", ()),
    (CALL, "", (WEATHER,)),
    (f"\n\n{CALL}\n", "", (WEATHER,)),
    (f"Let me look.\n{CALL}", "Let me look.\n", (WEATHER,)),
    (f"{CALL} And so on.", " And so on.", (WEATHER,)),
    (f"{CALL}\n{CALL}", "", (WEATHER, WEATHER)),
    (CALL.removesuffix("\n</tool_call>"), "", (WEATHER,)),
    ('<tool_call>{"name": "weather"}</tool_call>', "", (Call("weather", "{}"),)),
    (
        '<tool_call>{"name": "weather", "arguments": {"a": "</tool_call>"}}</tool_call>',
        "",
        (Call("weather", '{"a": "</tool_call>"}'),),
    ),
    ('<tool_call>{"name": "weather", "arguments": "{\\"a\\": 1}"}</tool_call>', "", (Call("weather", '{"a": 1}'),)),
    ('{"name": "weather", "parameters": {"city": "Graz"}}', "", (WEATHER,)),
    ('[{"name": "weather", "arguments": {"city": "Graz"}}]', "", (WEATHER,)),
    ('{"type": "function", "function": {"name": "weather", "arguments": {}}}', "", (Call("weather", "{}"),)),
    (
        '{"name": "weather", "arguments": {"n": 1e3, "m": 10000000000000000000000001}}',
        "",
        (Call("weather", '{"n": 1e3, "m": 10000000000000000000000001}'),),
    ),
]

NO_CALLS = [
    '<tool_call>{"name": "launch", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>',
    '<tool_call>{"name": "weather", "arguments": {"a": NaN}}</tool_call>',
    '<tool_call>{"name": "weather", "arguments": {"city": "Gr',
    "<tool_call>nonsense</tool_call> and more",
    "<tool_call>" + "[" * 3000,
    '{"name": "Bob", "age": 3}',
    '{"name": "weather"}',
    '{"name": "weather", "arguments": {}, "note": 1}',
    '{"name": "weather", "arguments": {}} and more',
    '[{"name": "weather", "arguments": {}}, {"name": "weather", "arguments": {}}]',
    "[1, 2]",
    "{",
    "  ",
    "<tool_ca",
    '{"answer": 42}',
]


def split(pieces: list[str]) -> tuple[list[str], tuple[Call, ...]]:
    splitter = CallSplitter(NAMES)
    shown = [splitter.push(piece) for piece in pieces]
    rest, calls = splitter.finish()
    return [*shown, rest], calls


@pytest.mark.parametrize(("text", "shown", "calls"), ANSWERS)
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_calls_are_taken_out_and_text_is_left(text: str, shown: str, calls: tuple[Call, ...], size: int) -> None:
    told, found = split([text[at : at + size] for at in range(0, len(text), size)])
    assert ("".join(told), found) == (shown, calls)


@pytest.mark.parametrize("text", NO_CALLS)
@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_what_is_no_call_is_text_and_nothing_of_it_is_lost(text: str, size: int) -> None:
    told, found = split([text[at : at + size] for at in range(0, len(text), size)])
    assert ("".join(told), found) == (text, ())


def test_nothing_of_a_call_is_shown_while_it_is_written() -> None:
    splitter = CallSplitter(NAMES)
    assert "".join(splitter.push(character) for character in f"Well. {CALL}") == "Well. "


def test_text_that_cannot_become_a_call_does_not_wait() -> None:
    splitter = CallSplitter(NAMES)
    assert splitter.push('{"name": "Bo') == '{"name": "Bo'
    splitter = CallSplitter(NAMES)
    assert splitter.push('{"name": "wea') == ""
    assert splitter.push("k") == '{"name": "weak'


def test_arguments_are_as_the_model_wrote_them() -> None:
    text = '{"name": "weather", "arguments":  {"n": 0.10, "text": "\\u00fc \\"arguments\\": {}"} }'
    (call,) = parse_calls(text, NAMES, tagged=False)
    assert call.arguments == '{"n": 0.10, "text": "\\u00fc \\"arguments\\": {}"}'
    assert json.loads(call.arguments)["n"] == 0.1


def test_a_template_tells_its_form() -> None:
    assert form_of(None) is TAGGED
    assert form_of("{{ tools }} <tool_call>") is TAGGED
    assert form_of("{{ tools }} [TOOL_CALLS]") is LISTED
    assert form_of('{{ tools }} {"name": function name, "parameters": dictionary}') is BARE_PARAMETERS
    assert form_of("{{ tools }}") is BARE
