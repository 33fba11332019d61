"""A GenerateRequest as the body and headers of a chat completion, or of a completion for a raw prompt.

A draft is never sent: it means something to one tokenizer alone. What is not set is left out, so that the
endpoint's own default counts. What travels beside the text (deadline, hops, idempotency) goes into headers,
for an endpoint refuses fields that it does not know. What a node above decides by (class, value, priority, risk,
commit rule) goes to Weir's own nodes alone. Tenant, site, session and subject stay here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge.openai_upstream.dialect import Dialect
from runtime import foreign_json
from wire.errors import InvalidRequest, NotSupported
from wire.messages import GenerateRequest, Message, ResponseFormat, Sampling, TierConstraint, Tool
from wire.service import Call

Json = dict[str, Any]
CHAT, COMPLETION = "/chat/completions", "/completions"
HOPS = "x-weir-hops"


def path(request: GenerateRequest) -> str:
    return CHAT if request.messages else COMPLETION


def headers(request: GenerateRequest, call: Call) -> dict[str, str]:
    """What Weir's own nodes read and others pass over."""
    told = {
        HOPS: str(request.hops),
        "x-weir-deadline-ms": str(max(int(call.deadline.remaining_s() * 1e3), 1)),
        "idempotency-key": request.idempotency_key,
        "traceparent": call.traceparent,
    }
    if request.constraints.tier is not TierConstraint.AUTO:
        told["x-weir-constraint"] = request.constraints.tier.value
    return {name: value for name, value in told.items() if value and value.isascii() and value.isprintable()}


def document(request: GenerateRequest, model: str, dialect: Dialect, *, to_node: bool = False) -> Json:
    """In the words that the endpoint is known to understand. Raises NotSupported, InvalidRequest."""
    chat = bool(request.messages)
    body: Json = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    if chat:
        body["messages"] = [_message(message) for message in request.messages]
    else:
        body["prompt"] = request.prompt
    if request.sampling.max_tokens is not None:
        body[dialect.length_field if chat else "max_tokens"] = request.sampling.max_tokens
    body |= _sampling(request.sampling)
    if request.stop:
        body["stop"] = list(request.stop)
    if request.return_logprobs or request.top_logprobs:
        body |= _logprobs(request.top_logprobs, chat)
    body |= _form(request)
    if to_node and (weir := _for_a_node(request)):
        body["weir"] = weir
    if request.tools and request.tool_choice != "none":
        body["tools"] = [_tool(tool) for tool in request.tools]
        body |= _choice(request.tool_choice)
        body["parallel_tool_calls"] = False  # an answer holds one call, as on a node; OpenAI's default is true
    return {name: value for name, value in body.items() if name not in dialect.without}


def _for_a_node(request: GenerateRequest) -> Json:
    """What the next node's own rules need, as its `weir` takes it."""
    told: Mapping[str, Any] = {
        "max_risk": request.constraints.max_risk,
        "commit_rule": request.constraints.commit_rule or None,
        "request_class": request.context.request_class or None,
        "value": request.context.value,
        "priority": request.context.priority or None,
    }
    return {name: value for name, value in told.items() if value is not None}


def _message(message: Message) -> Json:
    told: Json = {"role": message.role, "content": message.content}
    if message.tool_calls:
        told["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
        told["content"] = message.content or None
    if message.tool_call_id:
        told["tool_call_id"] = message.tool_call_id
    if message.name:
        told["name"] = message.name
    return told


def _sampling(s: Sampling) -> Json:
    told: Mapping[str, Any] = {
        "temperature": s.temperature,
        "top_p": s.top_p,
        "seed": s.seed,
        "presence_penalty": s.presence_penalty,
        "frequency_penalty": s.frequency_penalty,
        "logit_bias": {str(token): bias for token, bias in s.logit_bias.items()} or None,
        # Beyond OpenAI's own, though most endpoints that are compatible with it know them.
        "top_k": s.top_k or None,
        "min_p": s.min_p or None,
        "repetition_penalty": None if s.repetition_penalty == 1 else s.repetition_penalty,
    }
    return {name: value for name, value in told.items() if value is not None}


def _logprobs(top: int, chat: bool) -> Json:
    if chat:
        return {"logprobs": True, **({"top_logprobs": top} if top else {})}
    return {"logprobs": top}


def _form(request: GenerateRequest) -> Json:
    form = request.response_format
    if form is None or form.type in ("", "text"):
        return {}
    if form.type == "json_object":
        return {"response_format": {"type": "json_object"}}
    if form.type == "json_schema":
        return {"response_format": {"type": "json_schema", "json_schema": _schema(form)}}
    raise NotSupported(f"an OpenAI-compatible upstream does not serve the response format {form.type}")


def _schema(form: ResponseFormat) -> Json:
    """Strict only where the caller said so: an endpoint refuses most ordinary schemas as strict ones."""
    schema: Json = {"name": form.name or "answer", "schema": _parsed(form.json_schema)}
    if form.description:
        schema["description"] = form.description
    if form.strict:
        schema["strict"] = True
    return schema


def _tool(tool: Tool) -> Json:
    function: Json = {"name": tool.name, "description": tool.description}
    if tool.parameters:
        function["parameters"] = _parsed(tool.parameters)
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _choice(choice: str) -> Json:
    kind, _, name = choice.partition(":")
    if kind == "function":
        return {"tool_choice": {"type": "function", "function": {"name": name}}}
    return {"tool_choice": kind} if kind == "required" else {}


def _parsed(schema: str) -> Any:
    try:
        return foreign_json.read(schema)
    except foreign_json.NotJson as error:
        raise InvalidRequest(f"a JSON schema is not JSON that can be read: {error}") from error
