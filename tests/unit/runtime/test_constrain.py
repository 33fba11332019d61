"""Constrained decoding: whatever a model likes, its answer keeps to the grammar; bombs are refused in bounded time."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import tokenizers

from runtime.chat import ToolSpec
from runtime.constrain import ConstraintFailed, ConstraintMaker, Unconstrainable
from runtime.grammars import GrammarError
from runtime.ort.sampling import Constraint
from runtime.tokenizer import Tokenizer
from runtime.tool_calls import BARE, LISTED, TAGGED, CallSplitter
from tests.models import write_tokenizer
from tests.unit.runtime.test_token_bytes import tokens_of
from tests.unit.runtime.test_tokenizer import byte_tokenizer

ROWS = 400  # a little more than the tokens there are, as in real models
MOST_TOKENS = 2000
# Ours, and generous: this machine does each in a tenth of it.
COMPILE_S = 5.0

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["cat", "dog"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        "next": {"anyOf": [{"$ref": "#/$defs/link"}, {"type": "null"}]},
    },
    "required": ["name", "kind", "age", "tags", "next"],
    "additionalProperties": False,
    "$defs": {
        "link": {
            "type": "object",
            "properties": {"id": {"const": 7}},
            "required": ["id"],
            "additionalProperties": False,
        }
    },
}
TOOLS = [
    ToolSpec(
        "weather",
        "",
        json.dumps(
            {
                "type": "object",
                "properties": {"sure": {"$ref": "#/$defs/b"}},
                "required": ["sure"],
                "additionalProperties": False,
                "$defs": {"b": {"type": "boolean"}},
            }
        ),
    ),
    ToolSpec("stop", "", json.dumps({"type": "object", "properties": {}, "additionalProperties": False})),
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return Tokenizer.load(folder)


@pytest.fixture(scope="module")
def maker(tokenizer: Tokenizer) -> ConstraintMaker:
    return ConstraintMaker(tokenizer, ROWS)


def allowed(constraint: Constraint) -> np.ndarray[Any, np.dtype[np.intp]]:
    mask = constraint.mask()
    assert mask is not None
    assert mask.dtype == np.uint32
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))


def written(constraint: Constraint, tokenizer: Tokenizer, seed: int) -> str:
    """An answer of random tokens, of those that may come next; what a sampler without any model would write."""
    random, ids = np.random.default_rng(seed), []
    for _ in range(MOST_TOKENS):
        token = int(random.choice(allowed(constraint)))
        if token in tokenizer.stop_ids:
            return tokenizer.decode(ids)
        ids.append(token)
        if constraint.accept(token):
            return tokenizer.decode(ids)
    raise AssertionError(f"no end within {MOST_TOKENS} tokens: {tokenizer.decode(ids)[:200]}")


@pytest.mark.parametrize("seed", range(12))
def test_an_answer_keeps_to_its_schema(maker: ConstraintMaker, tokenizer: Tokenizer, seed: int) -> None:
    answer = json.loads(written(maker.json_schema(json.dumps(PERSON)), tokenizer, seed))
    jsonschema.validate(answer, PERSON)
    assert list(answer) == list(PERSON["properties"])  # type: ignore[call-overload]


def test_any_object_begins_as_one_and_ends_only_when_whole(maker: ConstraintMaker, tokenizer: Tokenizer) -> None:
    constraint = maker.json_object()
    (first,) = {tokenizer.token_bytes(int(token))[:1] for token in allowed(constraint)}
    assert first == b"{"
    text, ended = '{"a": [1, {"b": null}], "c": "ü"}', []
    for token in tokenizer.encode(text, special_tokens=False):
        assert token in allowed(constraint)
        ended.append(constraint.accept(token))
    assert ended[-1]
    assert not any(ended[:-1])
    assert set(allowed(constraint)) == tokenizer.stop_ids


@pytest.mark.parametrize("form", [TAGGED, BARE, LISTED])
@pytest.mark.parametrize("seed", range(4))
def test_a_demanded_call_is_one(maker: ConstraintMaker, tokenizer: Tokenizer, form: Any, seed: int) -> None:
    text = written(maker.call(TOOLS, form), tokenizer, seed)
    splitter = CallSplitter(["weather", "stop"])
    shown = splitter.push(text)
    rest, (call,) = splitter.finish()
    assert (shown, rest) == ("", "")
    arguments = json.loads(call.arguments)
    assert set(arguments) == ({"sure"} if call.name == "weather" else set())


def test_a_named_tool_is_the_only_one(maker: ConstraintMaker, tokenizer: Tokenizer) -> None:
    for seed in range(6):
        assert '"stop"' in written(maker.call(TOOLS[1:], BARE), tokenizer, seed)


@pytest.mark.parametrize("cut", [1, 3, 20])
def test_free_text_is_free_until_a_call_begins(maker: ConstraintMaker, tokenizer: Tokenizer, cut: int) -> None:
    constraint = maker.call_if_begun(TOOLS, TAGGED)
    text = "I will look. <tool_call>"
    for part in (text[at : at + cut] for at in range(0, len(text), cut)):
        for token in tokenizer.encode(part, special_tokens=False):
            assert constraint.mask() is None
            assert not constraint.accept(token)
    ending = written(constraint, tokenizer, 1)
    splitter = CallSplitter(["weather", "stop"])
    assert splitter.push(text + ending) == "I will look. "
    assert len(splitter.finish()[1]) == 1


def test_a_trigger_that_goes_on_as_no_call_is_left_to_be_text() -> None:
    odd = tokenizers.Tokenizer.from_buffer(byte_tokenizer())
    odd.add_tokens(["<tool_call>x"])
    tokenizer = Tokenizer(str(odd.to_str()).encode(), {"eos_token": "<|im_end|>"})
    constraint = ConstraintMaker(tokenizer, tokenizer.vocab_size).call_if_begun(TOOLS, TAGGED)
    (token,) = tokenizer.encode("<tool_call>x", special_tokens=False)
    assert not constraint.accept(token)
    assert constraint.mask() is None
    assert not constraint.accept(token)


def test_a_token_outside_the_mask_is_an_error_not_a_broken_answer(maker: ConstraintMaker, tokenizer: Tokenizer) -> None:
    constraint = maker.json_object()
    constraint.mask()
    with pytest.raises(ConstraintFailed):
        constraint.accept(tokenizer.encode("x", special_tokens=False)[0])


def test_equal_grammars_are_compiled_once_and_answers_do_not_meet(maker: ConstraintMaker, tokenizer: Tokenizer) -> None:
    schema = json.dumps({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]})
    one, other = maker.json_schema(schema), maker.json_schema(schema)
    for token in tokenizer.encode('{"x": 1', special_tokens=False):
        one.accept(token)
    assert {tokenizer.token_bytes(int(token))[:1] for token in allowed(other)} == {b"{"}
    for number in range(40):
        maker.json_schema(json.dumps({"type": "object", "title": f"{number}"}))
    assert len(maker._compiled) <= 32


def test_a_tokenizer_without_bytes_or_ends_is_refused() -> None:
    with pytest.raises(Unconstrainable, match="no bytes"):
        ConstraintMaker(tokens_of(None, ["a"]), 4)


def nested(levels: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def crossed(parts: int, ways: int) -> Any:
    return {
        "allOf": [
            {"anyOf": [{"type": "object", "properties": {f"p{i}_{j}": {"type": "string"}}} for j in range(ways)]}
            for i in range(parts)
        ]
    }


BOMBS: dict[str, Any] = {
    "not an object": [],
    "too deep": nested(60),
    "far too deep": "[" * 30_000,
    "too many values": {"enum": list(range(5000))},
    "crossed choices": crossed(4, 8),
    "many crossed choices": crossed(3, 100),
    "joined patterns": {"allOf": [{"type": "string", "pattern": f".*{c}.*"} for c in "abcdefghijklmnopqrst"]},
    "patterns joined by references": {
        "$ref": "#/$defs/a0",
        "$defs": {
            f"a{n}": {"type": "string", "pattern": f".*{n}.*", "$ref": f"#/$defs/a{(n + 1) % 20}"} for n in range(20)
        },
    },
    "a large multiple": {"type": "integer", "multipleOf": 999_983},
    "joined multiples": {"allOf": [{"type": "integer", "multipleOf": n} for n in (997, 991, 983)]},
    "many multiples": {
        "type": "object",
        "properties": {f"p{n}": {"type": "integer", "multipleOf": 9000 + n} for n in range(40)},
    },
    "a long pattern": {"type": "string", "pattern": "(" * 2000 + ")" * 2000},
    "a broken pattern": {"type": "string", "pattern": "("},
    "many pattern properties": {"type": "object", "patternProperties": {f"^{n}-": {} for n in range(300)}},
    "too many at once": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(1500)}},
    "itself": {"$ref": "#"},
    "elsewhere": {"$ref": "http://127.0.0.1:1/schema.json"},
    "a dialect elsewhere": {"$schema": "http://127.0.0.1:1/", "type": "string"},
    "unsupported: not": {"not": {"type": "string"}},
    "unsupported: unique": {"type": "array", "uniqueItems": True},
    "unsupported: format": {"type": "string", "format": "poem"},
    "endless digits": {"type": "number", "minimum": 1e-300, "maximum": 1e300},
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_schema_that_is_too_much_is_refused_in_bounded_time(maker: ConstraintMaker, name: str) -> None:
    began = time.monotonic()
    with pytest.raises(GrammarError) as refused:
        maker.json_schema(BOMBS[name] if isinstance(BOMBS[name], str) else json.dumps(BOMBS[name]))
    assert time.monotonic() - began < COMPILE_S
    assert 10 < len(str(refused.value)) < 500
    assert "\n" not in str(refused.value)


HEAVY: dict[str, Any] = {
    "recursion": {"type": "object", "properties": {"c": {"type": "array", "items": {"$ref": "#"}}}},
    "a chain of references": {
        "$ref": "#/$defs/a0",
        "$defs": {**{f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(900)}, "a900": {}},
    },
    "long strings": {"type": "string", "minLength": 10**9},
    "many items": {"type": "array", "minItems": 10**9, "items": {"type": "integer"}},
    "repeated repetitions": {"type": "string", "pattern": "(a{1000}){1000}"},
    "a wide automaton": {"type": "string", "pattern": ".*a.{20}"},
    "many enums": {"enum": [f"value number {n}" for n in range(2000)]},
    "many properties": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(300)}},
}


@pytest.mark.parametrize("name", HEAVY)
def test_a_heavy_schema_costs_little_a_step(maker: ConstraintMaker, name: str) -> None:
    began = time.monotonic()
    constraint = maker.json_schema(json.dumps(HEAVY[name]))
    assert time.monotonic() - began < COMPILE_S
    random, slowest = np.random.default_rng(0), 0.0
    for _ in range(100):
        before = time.monotonic()
        tokens = allowed(constraint)
        slowest = max(slowest, time.monotonic() - before)
        if constraint.accept(int(random.choice(tokens))):
            break
    assert slowest < 0.5


def test_a_callers_own_options_do_not_count(maker: ConstraintMaker, tokenizer: Tokenizer) -> None:
    schema = {"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}
    with pytest.raises(GrammarError, match="uniqueItems"):
        maker.json_schema(json.dumps(schema))


def test_white_space_is_bounded(maker: ConstraintMaker, tokenizer: Tokenizer) -> None:
    constraint = maker.json_object()
    for token in tokenizer.encode("{\n", special_tokens=False):
        constraint.accept(token)
    for _ in range(17):
        (blank,) = tokenizer.encode(" ", special_tokens=False)
        if blank not in allowed(constraint):
            return
        constraint.accept(blank)
    raise AssertionError("blanks may go on for ever")


@pytest.mark.real_model
def test_a_real_vocabulary_is_held_to_a_schema(smollm2_release: Path) -> None:
    tokenizer = Tokenizer.load(smollm2_release)
    maker = ConstraintMaker(tokenizer, tokenizer.vocab_size)
    for seed in range(4):
        answer = written(maker.json_schema(json.dumps(PERSON)), tokenizer, seed)
        jsonschema.validate(json.loads(answer), PERSON)
