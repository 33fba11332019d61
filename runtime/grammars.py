"""Grammars for llguidance, from JSON schemas and from tools, with what may not be asked of it refused first.

A schema is a caller's and untrusted. Its size, depth and the products its keywords can multiply into are
bounded here, before any of it is compiled; what is left is bounded by the compiler's own limits
(runtime.constrain). Each refusal says what is too much and how much is allowed.

Must not know: tokens, the compiler's objects, models.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from runtime import foreign_json
from runtime.chat import ToolSpec, schema_of
from runtime.tool_calls import CallForm

# One blank, or a line break with an indent: a model that likes white space must not write it for ever.
_WHITE_SPACE = r"(\x0A {0,16}| )"
_OPTIONS = {"whitespace_pattern": _WHITE_SPACE}
_OPTIONS_KEY = "x-guidance"

MOST_DEPTH = 64
MOST_VALUES = 4000
MOST_BRANCHES = 256
MOST_PATTERN = 1024
MOST_PATTERN_PROPERTIES = 64  # each pair of them is held against each other
# Patterns that must all hold at once are multiplied: 14 take 0.2 s, 20 more than a minute.
MOST_JOINED_PATTERNS = 8
# A multipleOf becomes an automaton of that many states, and two that must both hold are multiplied.
MOST_MULTIPLES = 20_000

_KEYWORDS_OF_PATTERNS = ("pattern", "format", "patternProperties", "multipleOf")


class GrammarError(ValueError):
    """The schema cannot be answered by; the message says why."""


class NotASchema(GrammarError):
    """What was given is no schema to anybody."""


def json_object() -> str:
    """Any JSON object."""
    return json.dumps({"type": "object", _OPTIONS_KEY: _OPTIONS})


def json_schema(text: str) -> str:
    """A JSON schema, checked, with how its answers are written. Raises GrammarError, NotASchema."""
    return json.dumps(_bounded(_parsed(text), "the JSON schema"))


def calls(tools: Sequence[ToolSpec], form: CallForm, *, begun: bool) -> str:
    """One call of one of `tools`, in Lark. `begun` leaves out the trigger, which was written already.

    Raises GrammarError, NotASchema.
    """
    begin = form.begin.removeprefix(form.trigger) if begun else form.begin
    rules = []
    for index, tool in enumerate(tools):
        try:
            schema = schema_of(tool)
        except ValueError as error:
            raise NotASchema(str(error)) from error
        schema = _bounded(schema, f"the parameters of tool {tool.name}")
        if schema.get("type", "object") != "object":
            raise NotASchema(f"the parameters of tool {tool.name} must be of type object")
        head = f'{{"name": "{tool.name}", "{form.key}": '
        rules.append(f"call{index}: {_literal(head)} %json {json.dumps({'type': 'object', **schema})} {_literal('}')}")
    names = " | ".join(f"call{index}" for index in range(len(tools)))
    parts = (_literal(begin) if begin else "", f"({names})", _literal(form.end) if form.end else "")
    return "\n".join(("%llguidance {}", f"start: {' '.join(part for part in parts if part)}", *rules)) + "\n"


def _literal(text: str) -> str:
    return json.dumps(text)


def _parsed(text: str) -> dict[str, Any]:
    try:
        schema = foreign_json.read(text)
    except foreign_json.NotJson as error:
        raise NotASchema(f"the JSON schema is not JSON that can be read: {error}") from error
    if not isinstance(schema, dict):
        raise NotASchema("the JSON schema must be a JSON object")
    return schema


def _bounded(schema: dict[str, Any], what: str) -> dict[str, Any]:
    """`schema` with our options. Raises GrammarError where it asks for too much."""
    sums, joined, multiples = Counter[str](), False, []
    for key, value, depth in _walk(schema):
        sums["values"] += 1
        if sums["values"] > MOST_VALUES:
            raise GrammarError(f"{what} holds more than {MOST_VALUES} values, which is the most")
        if depth > MOST_DEPTH:
            raise GrammarError(f"{what} is nested too deeply: more than {MOST_DEPTH} levels")
        joined = joined or (isinstance(value, dict) and _joins(value))
        if key in ("anyOf", "oneOf", "allOf") and isinstance(value, list):
            sums["anyOf, oneOf and allOf branches"] += len(value)
        elif key in ("pattern", "format"):
            sums["patterns and formats"] += 1
            if key == "pattern" and len(str(value)) > MOST_PATTERN:
                raise GrammarError(f"{what} holds a pattern of {len(str(value))} characters; at most {MOST_PATTERN}")
        elif key == "patternProperties" and isinstance(value, dict):
            sums["patternProperties"] += len(value)
        elif key == "multipleOf":
            multiples.append(_digits(value))
    sums["multipleOf, taken together"] = math.prod(multiples) if joined else sum(multiples)
    most = {
        "anyOf, oneOf and allOf branches": MOST_BRANCHES,
        "patterns and formats": MOST_JOINED_PATTERNS if joined else MOST_VALUES,
        "patternProperties": MOST_PATTERN_PROPERTIES,
        "multipleOf, taken together": MOST_MULTIPLES,
    }
    for name, bound in most.items():
        if sums[name] > bound:
            raise GrammarError(f"{what} is too much: {name} come to {sums[name]:.6g}, at most {bound} here")
    return {**schema, _OPTIONS_KEY: _OPTIONS}


def _walk(schema: dict[str, Any]) -> Iterator[tuple[str, Any, int]]:
    waiting: list[tuple[str, Any, int]] = [("", schema, 0)]
    while waiting:
        key, value, depth = waiting.pop()
        yield key, value, depth
        if isinstance(value, dict):
            waiting.extend((name, part, depth + 1) for name, part in value.items())
        elif isinstance(value, list):
            waiting.extend(("", part, depth + 1) for part in value)


def _joins(node: dict[str, Any]) -> bool:
    """Whether several parts of a schema must hold at once here, so that their patterns are multiplied."""
    every = node.get("allOf")
    parts = len(every) if isinstance(every, list) else 0
    parts += sum(key in node for key in ("$ref", "anyOf", "oneOf"))
    return parts + any(key in node for key in _KEYWORDS_OF_PATTERNS) > 1


def _digits(value: Any) -> int:
    """A multipleOf's significant digits as a whole number: 0.25 and 2500 are 25."""
    try:
        digits = Decimal(str(value)).normalize().as_tuple().digits
    except ArithmeticError:
        return 1  # no number: the compiler says so
    return int("".join(map(str, digits[:20])) or "1") or 1
