"""A conversation as a chat template sees it: turns, tools, and calls of tools.

Templates that know tools are given them the way the families agreed on (`tools` as OpenAI's JSON,
`tool_calls` and role `tool` in the messages). For those that do not, `woven` says all of it in plain
text, so that any model can be asked: see docs/openai.md for the words.

Must not know: tokenizers, templates, transports.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from runtime import foreign_json
from runtime.tool_calls import CLOSE, OPEN, Call


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn. `calls` are an assistant's; `call_id` and `name` say what a tool's turn answers."""

    role: str
    content: str
    calls: tuple[Call, ...] = ()
    call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that may be called. `parameters` is a JSON schema of its arguments; empty: any object."""

    name: str
    description: str = ""
    parameters: str = ""


def message(turn: Turn) -> dict[str, Any]:
    """A turn as templates take it: arguments as objects, and no key that was not given."""
    document: dict[str, Any] = {"role": turn.role, "content": turn.content}
    if turn.calls:
        document["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _object(call.arguments)}}
            for call in turn.calls
        ]
    if turn.call_id:
        document["tool_call_id"] = turn.call_id
    if turn.name:
        document["name"] = turn.name
    return document


def described(tool: ToolSpec) -> dict[str, Any]:
    """A tool as templates take it. Raises ValueError when its parameters are no JSON object."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = schema_of(tool)
    return {"type": "function", "function": function}


def schema_of(tool: ToolSpec) -> dict[str, Any]:
    """The schema of a tool's arguments. Raises ValueError."""
    if not tool.parameters:
        return {"type": "object", "properties": {}}
    try:
        schema = foreign_json.read(tool.parameters)
    except foreign_json.NotJson as error:
        raise ValueError(f"the parameters of tool {tool.name!r} are not JSON that can be read: {error}") from error
    if not isinstance(schema, dict):
        raise ValueError(f"the parameters of tool {tool.name!r} must be a JSON object (a schema)")
    return schema


def woven(turns: Sequence[Turn], tools: Sequence[ToolSpec], role: str = "system") -> list[Turn]:
    """The conversation in plain text turns. The tools are told in the first turn if it is of `role`, else before it."""
    plain: list[Turn] = []
    for turn in turns:
        if turn.role == "tool":
            told = f"<tool_response>\n{turn.content}\n</tool_response>"
            if plain and plain[-1].role == "user" and plain[-1].content.endswith("</tool_response>"):
                plain[-1] = replace(plain[-1], content=f"{plain[-1].content}\n{told}")
            else:
                plain.append(Turn("user", told))
        else:
            written = [turn.content] if turn.content else []
            written += [f"{OPEN}\n{_written(call)}\n{CLOSE}" for call in turn.calls]
            plain.append(Turn(turn.role, "\n".join(written)))
    if not tools:
        return plain
    told = instructions(tools)
    at = next((index for index, turn in enumerate(plain) if turn.role == role), None) if role == "user" else 0
    if at is not None and plain and plain[at].role == role:
        first = plain[at]
        content = f"{first.content}\n\n{told}" if role == "system" else f"{told}\n\n{first.content}"
        return [*plain[:at], replace(first, content=content), *plain[at + 1 :]]
    return [Turn(role, told), *plain]


def instructions(tools: Sequence[ToolSpec]) -> str:
    """What a model is told about its tools when its template has no words for them. Raises ValueError."""
    listed = "\n".join(json.dumps(described(tool)["function"], ensure_ascii=False) for tool in tools)
    return (
        f"You can call these tools:\n<tools>\n{listed}\n</tools>\n"
        f'To call one, answer with nothing but\n{OPEN}\n{{"name": TOOL, "arguments": {{...}}}}\n{CLOSE}\n'
        "Its result comes back as <tool_response>. Without need of a tool, just answer."
    )


def _written(call: Call) -> str:
    return f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments or "{}"}}}'


def _object(arguments: str) -> Any:
    """Arguments as the object templates turn into JSON; a text that is none stays a text."""
    try:
        return foreign_json.read(arguments or "{}")
    except foreign_json.NotJson:
        return arguments
