"""What a chat completion request may say, field by field.

Nothing is silently dropped that could change an answer: an unknown or unsupported field is refused
by its name. Fields that never change an answer's text (HARMLESS) are accepted and not used. Fields
at the value that means "off" (NEUTRAL) are accepted too, because some clients always send them.
A null means the field was not given. An absent temperature means greedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wire.errors import InvalidRequest

HARMLESS = frozenset(
    ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
)
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
}
_MESSAGE_NEUTRAL: Mapping[str, tuple[Any, ...]] = {"tool_calls": ([],), "annotations": ([],)}

_INT32 = (1 << 31) - 1
_UINT64 = (1 << 64) - 1
_Label = Annotated[str, Field(max_length=512)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class TextPart(_Strict):
    type: Literal["text"]
    text: str


class ChatMessage(_Strict):
    role: str
    content: str | list[TextPart]


class StreamOptions(_Strict):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class JsonSchema(_Strict):
    name: str = ""
    description: str = ""
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")
    strict: bool = False


class Format(_Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class WeirOptions(_Strict):
    """Weir's own part of the body, under `weir`. See wire.messages.Constraints and Context."""

    constraint: Literal["auto", "edge_only", "cloud_only"] | None = None
    max_risk: float | None = None
    commit_rule: str = ""
    deadline_ms: float | None = None
    idempotency_key: _Label = ""
    session_id: _Label = ""
    tenant: _Label = ""
    site: _Label = ""
    request_class: _Label = ""
    value: float | None = None
    priority: int = Field(default=0, ge=-_INT32, le=_INT32)
    subject: _Label = ""


class ChatRequest(_Strict):
    """The body of POST /v1/chat/completions."""

    model: str
    messages: list[ChatMessage]
    max_tokens: int | None = Field(default=None, le=_INT32, ge=-_INT32)
    max_completion_tokens: int | None = Field(default=None, le=_INT32, ge=-_INT32)
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = Field(default=None, ge=-_INT32, le=_INT32)
    seed: int | None = Field(default=None, ge=0, le=_UINT64)
    stop: str | list[str] = Field(default_factory=list)
    stream: bool = False
    stream_options: StreamOptions | None = None
    response_format: Format | None = None
    weir: WeirOptions = Field(default_factory=WeirOptions)


def parse(document: Any) -> ChatRequest:
    """A JSON document as a ChatRequest. Raises InvalidRequest naming the field at fault."""
    if not isinstance(document, dict):
        raise InvalidRequest("the body must be a JSON object")
    given = _without_neutral(document, NEUTRAL, HARMLESS)
    messages = given.get("messages")
    if isinstance(messages, list):
        given["messages"] = [
            _without_neutral(message, _MESSAGE_NEUTRAL, frozenset()) if isinstance(message, dict) else message
            for message in messages
        ]
    try:
        return ChatRequest.model_validate(given)
    except ValidationError as error:
        raise InvalidRequest(_explain(error)) from error


def _without_neutral(
    document: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]], harmless: frozenset[str]
) -> dict[str, Any]:
    def kept(name: str, value: Any) -> bool:
        off = name in neutral and any(value == choice for choice in neutral[name])
        return value is not None and name not in harmless and not off

    return {name: value for name, value in document.items() if kept(name, value)}


def _explain(error: ValidationError) -> str:
    fault = error.errors(include_url=False)[0]
    name = _path(fault["loc"])
    match fault["type"]:
        case "missing":
            return f"{name} is missing"
        case "extra_forbidden":
            return f"{name} is not supported here; leave it out (nothing is dropped silently)"
        case _:
            shown = repr(fault["input"])
            return f"{name}: {fault['msg']}; got {shown if len(shown) <= 80 else shown[:77] + '...'}"


def _path(location: tuple[int | str, ...]) -> str:
    """messages.0.content.list[TextPart].1.type → messages[0].content[1].type"""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in ("str", "list[TextPart]", "list[str]"):
            path += f".{part}" if path else part
    return path or "body"
