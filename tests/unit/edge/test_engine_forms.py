"""What holds an answer in the engine, and of what kind a refusal is: this tier's, or everybody's."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from edge.engine.tools import Grammars
from runtime.constrain import ConstraintMaker
from runtime.tokenizer import Tokenizer
from runtime.tool_calls import BARE, TAGGED, CallForm
from tests.models import write_tokenizer
from wire.deadline import Deadline
from wire.errors import CannotConstrain, InvalidRequest
from wire.messages import GenerateRequest, Message, ResponseFormat, Tool

HELLO = (Message("user", "hi"),)
PLAIN, STRICT = Tool("f"), Tool("f", strict=True)


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> ConstraintMaker:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return ConstraintMaker(Tokenizer.load(folder), 400)


async def constraint(maker: ConstraintMaker, form: CallForm = TAGGED, **fields: Any) -> Any:
    with closing(Grammars()) as grammars:
        return await grammars.constraint(GenerateRequest(messages=HELLO, **fields), maker, form, Deadline.after(20))


def schema(text: str) -> dict[str, Any]:
    return {"response_format": ResponseFormat("json_schema", text)}


def tool(parameters: str) -> dict[str, Any]:
    return {"tools": (Tool("f", parameters=parameters),), "tool_choice": "required"}


REFUSED: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("a keyword", schema('{"not": {}}'), CannotConstrain, "response_format: this schema"),
    ("too large", schema('{"type": "integer", "multipleOf": 999983}'), CannotConstrain, "response_format: "),
    ("a tool's keyword", tool('{"properties": {"a": {"not": {}}}}'), CannotConstrain, "tools: "),
    ("no JSON", schema("{"), InvalidRequest, "response_format: the JSON schema is not JSON"),
    ("a long number", schema('{"maximum": ' + "9" * 5000 + "}"), InvalidRequest, "maximum: a number of 5000 digits"),
    ("no number", schema('{"maximum": 1e999}'), InvalidRequest, "maximum: the number 1e999 is too large"),
    ("a tool's number", tool('{"maximum": NaN}'), InvalidRequest, "tools: the parameters .* NaN is not JSON"),
    ("no schema", schema("[]"), InvalidRequest, "must be a JSON object"),
    ("a tool of no object", tool('{"type": "array"}'), InvalidRequest, "tools: the parameters of tool f"),
]


@pytest.mark.parametrize(("name", "fields", "kind", "words"), REFUSED)
async def test_a_refusal_says_whether_another_tier_may_help(
    maker: ConstraintMaker, name: str, fields: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words) as refused:
        await constraint(maker, **fields)
    assert type(refused.value) is kind, name


async def test_a_strict_tool_is_held_to_or_refused(maker: ConstraintMaker) -> None:
    """A model whose calls nothing announces cannot be held to a call that it may or may not make."""
    with pytest.raises(CannotConstrain, match="tools: f is strict"):
        await constraint(maker, BARE, tools=(PLAIN, STRICT))
    assert await constraint(maker, BARE, tools=(PLAIN,)) is None
    for form, choice in ((TAGGED, "auto"), (TAGGED, ""), (BARE, "required"), (BARE, "function:f")):
        assert await constraint(maker, form, tools=(STRICT,), tool_choice=choice) is not None
    assert await constraint(maker, BARE, tools=(STRICT,), tool_choice="none") is None
