"""What a chat completion request may say, field by field. See edge.http.fields for the rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, ValidationError

from edge.http.fields import (
    OBJECT,
    WORD,
    WORDS,
    Common,
    FieldRefused,
    Strict,
    TokenCount,
    demand_kind,
    member,
    refusal,
    said,
    without_neutral,
)

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "tools": ([],),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
}
# Without tools these say nothing.
_NEUTRAL_WITHOUT_TOOLS: Mapping[str, tuple[Any, ...]] = {
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
}
_MESSAGE_NEUTRAL: Mapping[str, tuple[Any, ...]] = {"tool_calls": ([],), "annotations": ([],)}


class TextPart(Strict):
    type: Literal["text"]
    text: str


class CalledFunction(Strict):
    name: str
    arguments: str = ""


class MessageCall(Strict):
    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Strict):
    role: str
    content: Annotated[Annotated[str, Tag(WORD)] | Annotated[list[TextPart], Tag(WORDS)], Discriminator(member)] = ""
    name: str = ""
    tool_calls: list[MessageCall] = Field(default_factory=list)
    tool_call_id: str = ""


class FunctionSpec(Strict):
    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool = False


class ToolSpec(Strict):
    type: Literal["function"]
    function: FunctionSpec


class ChosenFunction(Strict):
    name: str


class NamedChoice(Strict):
    type: Literal["function"]
    function: ChosenFunction


class JsonSchema(Strict):
    name: str = ""
    description: str = ""
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")
    strict: bool | None = None


class Format(Strict):
    """`choice` is an extension: the answer is the likeliest of `choices`."""

    type: Literal["text", "json_object", "json_schema", "choice"]
    json_schema: JsonSchema | None = None
    choices: list[str] = Field(default_factory=list)


class ChatRequest(Common):
    """The body of POST /v1/chat/completions."""

    messages: list[ChatMessage]
    max_completion_tokens: TokenCount | None = None
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=20)
    response_format: Format | None = None
    tools: list[ToolSpec] = Field(default_factory=list)
    tool_choice: Annotated[
        Annotated[Literal["none", "auto", "required"], Tag(WORD)] | Annotated[NamedChoice, Tag(OBJECT)],
        Discriminator(member),
    ] = "auto"
    parallel_tool_calls: bool = False


def parse(document: Any) -> ChatRequest:
    """A JSON document as a ChatRequest. Raises InvalidRequest naming the field at fault."""
    given = said(document, NEUTRAL)
    if "tools" not in given:
        given = without_neutral(given, _NEUTRAL_WITHOUT_TOOLS)
    messages = given.get("messages")
    if isinstance(messages, list):
        given["messages"] = [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]
    if isinstance(given.get("tools"), list):
        given["tools"] = [_tool(tool) for tool in given["tools"]]
    demand_kind(given.get("tool_choice"), "function", "tool_choice")
    try:
        body = ChatRequest.model_validate(given)
    except ValidationError as error:
        raise refusal(error) from error
    _check_together(body, given)
    return body


def _message(message: Any, where: str) -> Any:
    if not isinstance(message, dict):
        return message
    kept = without_neutral(message, _MESSAGE_NEUTRAL)
    parts = kept.get("content")
    for index, part in enumerate(parts if isinstance(parts, list) else ()):
        demand_kind(part, "text", f"{where}.content[{index}]")
    # An assistant's turn that calls tools has no text; any other turn must have some.
    if "content" not in kept and kept.get("tool_calls"):
        kept["content"] = ""
    return kept


def _tool(tool: Any) -> Any:
    if not isinstance(tool, dict) or not isinstance(tool.get("function"), dict):
        return tool
    return {**tool, "function": {name: value for name, value in tool["function"].items() if value is not None}}


def _check_together(body: ChatRequest, given: Mapping[str, Any]) -> None:
    """What fields may not say together."""
    for index, message in enumerate(given["messages"]):
        if isinstance(message, dict) and "content" not in message:
            raise FieldRefused(f"messages[{index}].content is missing", f"messages[{index}].content")
    for index, turn in enumerate(body.messages):
        where = f"messages[{index}].tool_call_id"
        if turn.role == "tool" and not turn.tool_call_id:
            raise FieldRefused(f"{where} is missing; say which call this answers", where)
        if turn.role != "tool" and turn.tool_call_id:
            raise FieldRefused(f"{where} belongs to role tool alone", where)
    if body.parallel_tool_calls:
        message = "parallel_tool_calls true is not supported here: an answer holds one call; leave it out or say false"
        raise FieldRefused(message, "parallel_tool_calls", "unsupported_parameter")
    if body.top_logprobs and not body.logprobs:
        raise FieldRefused("top_logprobs needs logprobs true", "top_logprobs")
    if body.stream_options is not None and not body.stream:
        raise FieldRefused("stream_options goes with stream true alone", "stream_options")
    _check_format(body)


def _check_format(body: ChatRequest) -> None:
    form = body.response_format
    if form is None:
        return
    if form.type == "json_schema" and form.json_schema is None:
        raise FieldRefused("response_format.json_schema is missing", "response_format.json_schema")
    if form.type != "json_schema" and form.json_schema is not None:
        raise FieldRefused("response_format.json_schema goes with type json_schema", "response_format.json_schema")
    if form.type != "choice" and form.choices:
        raise FieldRefused("response_format.choices goes with type choice", "response_format.choices")
    if form.type == "choice" and body.n > 1:
        message = f"n is {body.n}; response_format choice has one answer, the likeliest of its options: leave n out"
        raise FieldRefused(message, "n", "unsupported_parameter")
    if form.type != "text" and body.tools and body.tool_choice != "none":
        message = "response_format and tools are not served together; leave one out, or set tool_choice to none"
        raise FieldRefused(message, "response_format", "unsupported_parameter")
