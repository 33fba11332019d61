"""Between OpenAI's chat completions and Weir's messages. Pure: no sockets, no clock."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from edge.http import asking
from edge.http.asking import Headers
from edge.http.choices import Answer
from edge.http.logprobs import Entries, chat_shape, whole_chat_shape
from edge.http.provenance import all_provenance, usage
from edge.http.schema import ChatMessage, ChatRequest, Format, NamedChoice
from edge.http.schema import ToolSpec as ToolField
from wire.errors import InvalidRequest
from wire.messages import Delta, Final, GenerateRequest, Message, ResponseFormat, Tool, ToolCall, Usage

Json = dict[str, Any]

# OpenAI renamed the system role; both mean the same to a chat template.
_ROLES = {"developer": "system"}


def to_request(body: ChatRequest, headers: Headers, request_id: str, streaming_rule: str) -> GenerateRequest:
    """The request behind a body. `streaming_rule` is the commit rule of clients that stream."""
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise InvalidRequest("max_tokens and max_completion_tokens differ; give one")
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    return GenerateRequest(
        model=body.model,
        messages=tuple(_message(message) for message in body.messages),
        sampling=asking.sampling(body, limit),
        stop=asking.stops(body),
        response_format=_format(body.response_format),
        constraints=asking.constraints(body.weir, headers, asking.rule_of(body, streaming_rule)),
        context=asking.context(body.weir),
        idempotency_key=body.weir.idempotency_key or headers.idempotency_key,
        request_id=request_id,
        hops=headers.hops,
        return_logprobs=body.logprobs,
        top_logprobs=body.top_logprobs,
        tools=tuple(_tool(tool) for tool in body.tools),
        tool_choice=_choice(body),
    )


def _message(message: ChatMessage) -> Message:
    calls = tuple(ToolCall(call.id, call.function.name, call.function.arguments) for call in message.tool_calls)
    role = _ROLES.get(message.role, message.role)
    return Message(role, _text(message), calls, message.tool_call_id, message.name)


def _text(message: ChatMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    return "".join(part.text for part in message.content)


def _tool(tool: ToolField) -> Tool:
    function = tool.function
    parameters = "" if function.parameters is None else json.dumps(function.parameters)
    return Tool(function.name, function.description, parameters, function.strict)


def _choice(body: ChatRequest) -> str:
    if isinstance(body.tool_choice, NamedChoice):
        return f"function:{body.tool_choice.function.name}"
    return body.tool_choice if body.tools or body.tool_choice == "required" else ""


def _format(given: Format | None) -> ResponseFormat | None:
    if given is None or given.type == "text":
        return None
    if given.json_schema is not None:
        said = given.json_schema
        schema = json.dumps(said.schema_)
        return ResponseFormat("json_schema", schema, (), said.name, said.description, said.strict or False)
    return ResponseFormat(given.type, choices=tuple(given.choices))


@dataclass(frozen=True, slots=True)
class Shape:
    """What every piece of one body repeats. `logprobs` is how many alternatives were asked for; None: no log-probs."""

    id: str
    created: int
    model: str
    logprobs: int | None = None

    def completion(self, answers: Sequence[Answer], tokens: Usage) -> Json:
        """A whole body, for edge.http.gradual."""
        return {
            **self._head("chat.completion"),
            "choices": [self._choice(index, answer) for index, answer in enumerate(answers)],
            "usage": usage(tokens),
            "weir": all_provenance([answer.end for answer in answers]),
        }

    def _choice(self, index: int, answer: Answer) -> Json:
        text, calls = answer.text, answer.end.tool_calls
        message: Json = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
        if calls:
            message["tool_calls"] = [_call(call) for call in calls]
        logprobs = None
        if self.logprobs is not None:
            logprobs = whole_chat_shape(answer.deltas, self.logprobs)
        return {"index": index, "message": message, "finish_reason": answer.end.finish_reason, "logprobs": logprobs}

    def _head(self, kind: str) -> Json:
        return {"id": f"chatcmpl-{self.id}", "object": kind, "created": self.created, "model": self.model}


@dataclass(slots=True)
class Stream:
    """The chunks of one stream of `n` answers."""

    shape: Shape
    n: int
    entries: list[Entries] = field(init=False)

    def __post_init__(self) -> None:
        self.entries = [Entries(self.shape.logprobs or 0) for _ in range(self.n)]

    def begin(self) -> list[Json]:
        return [self._chunk(index, {"role": "assistant", "content": ""}) for index in range(self.n)]

    def piece(self, index: int, delta: Delta) -> list[Json]:
        if self.shape.logprobs is None:
            return [self._chunk(index, {"content": delta.text})] if delta.text else []
        told = self.entries[index].take(delta)
        return [self._chunk(index, {"content": delta.text}, chat_shape(told))] if delta.text else []

    def end(self, index: int, final: Final) -> list[Json]:
        """The closing of one answer: its calls, whole, and how it ended."""
        calls = [self._chunk(index, {"tool_calls": [_call(call, at)]}) for at, call in enumerate(final.tool_calls)]
        return [*calls, self._chunk(index, {}, finish=final.finish_reason)]

    def usage(self, tokens: Usage) -> Json:
        head = self.shape._head("chat.completion.chunk")
        return {**head, "choices": [], "usage": usage(tokens)}

    def _chunk(self, index: int, delta: Json, logprobs: Json | None = None, finish: str | None = None) -> Json:
        choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        return {**self.shape._head("chat.completion.chunk"), "choices": [choice]}


def _call(call: ToolCall, index: int | None = None) -> Json:
    document: Json = {} if index is None else {"index": index}
    return document | {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
