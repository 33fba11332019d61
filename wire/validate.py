"""Checks every request passes before it costs anything, at every tier alike.

Raises InvalidRequest (what can never succeed), TooLarge (over a size bound) or TooManyHops. Says which
field, which value, and what is allowed.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from wire.classification import MOST_IDS, ClassifyRequest
from wire.errors import InvalidRequest, TooLarge, TooManyHops
from wire.messages import Context, Draft, GenerateRequest, Message, ResponseFormat, Sampling, TierConstraint
from wire.scoring import ScoreRequest

_MOST_SHOWN = 40
_MOST_ID = (1 << 31) - 1
ROLES = ("system", "user", "assistant", "tool")
FORMS = ("", "text", "json_object", "json_schema", "choice")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Bounds on one request. Bytes are of UTF-8 text."""

    max_prompt_bytes: int = 1 << 20
    max_messages: int = 1024
    max_stop_sequences: int = 16
    max_stop_bytes: int = 1024
    max_label_bytes: int = 512
    max_hops: int = 4
    max_tools: int = 64
    max_schema_bytes: int = 64 << 10  # of one schema
    max_choices: int = 64
    max_logit_bias: int = 1024
    max_top_logprobs: int = 20


def check_request(request: GenerateRequest, limits: RequestLimits) -> None:
    """Raises the first fault found."""
    _check_text(request.messages, request.prompt, limits)
    _check_sampling(request.sampling, limits)
    _check_stop(request.stop, limits)
    if request.constraints.commit_rule:
        commit_prefix(request.constraints.commit_rule)
    _check_risk(request.constraints.max_risk)
    _check_labels(request.context, limits, **_labels_of(request))
    _check_form(request.response_format, limits)
    _check_tools(request, limits)
    if not 0 <= request.top_logprobs <= limits.max_top_logprobs:
        raise InvalidRequest(f"top_logprobs is {request.top_logprobs}; at most {limits.max_top_logprobs}")
    if request.draft is not None:
        _check_draft(request.draft, limits)
    _check_hops(request.hops, limits)


def check_classify(request: ClassifyRequest, limits: RequestLimits) -> None:
    """Raises the first fault found."""
    if request.input_ids or request.token_type_ids:
        _check_ids(request)
    elif not request.text.strip():
        raise InvalidRequest("text is empty; give a text to label")
    size = len(request.text.encode()) + len(request.text_pair.encode())
    if size > limits.max_prompt_bytes:
        raise TooLarge(f"the text has {size} bytes; at most {limits.max_prompt_bytes}")
    if request.top_labels < 0:
        raise InvalidRequest(f"top_labels is {request.top_labels}; it must be 0 (all) or more")
    _check_risk(request.constraints.max_risk)
    if request.constraints.commit_rule:
        raise InvalidRequest("commit_rule is for text that is written; a label comes whole: leave it out")
    labels = {
        "model": request.model,
        "idempotency_key": request.idempotency_key,
        "request_id": request.request_id,
    }
    _check_labels(request.context, limits, **labels)
    _check_hops(request.hops, limits)


def _check_ids(request: ClassifyRequest) -> None:
    """Of a row of token ids, all but what the model alone knows: its vocabulary and its longest text."""
    ids, types = request.input_ids, request.token_type_ids
    if request.text or request.text_pair:
        raise InvalidRequest("give text or input_ids, not both")
    if not ids:
        raise InvalidRequest("token_type_ids goes with input_ids, which is empty")
    if len(ids) > MOST_IDS:
        raise TooLarge(f"input_ids has {len(ids)} tokens; at most {MOST_IDS}")
    least, most = min(ids), max(ids)
    if least < 0 or most > _MOST_ID:
        wrong = least if least < 0 else most
        raise InvalidRequest(f"input_ids has {wrong} at position {ids.index(wrong)}, which is no token id")
    if len(types) not in (0, len(ids)):
        raise InvalidRequest(f"token_type_ids has {len(types)} entries for {len(ids)} input_ids; one for each")
    if odd := set(types).difference((0, 1)):
        wrong = min(odd)
        raise InvalidRequest(f"token_type_ids has {wrong} at position {types.index(wrong)}; give 0 or 1")
    if request.constraints.tier is TierConstraint.CLOUD_ONLY:
        raise InvalidRequest(
            "input_ids are words of the edge's own model, so constraint cloud_only cannot be kept; send text"
        )


def check_score(request: ScoreRequest, limits: RequestLimits) -> None:
    """Raises the first fault found."""
    _check_text(request.messages, request.prompt, limits)
    if not request.continuations:
        raise InvalidRequest("there is no continuation; give at least one")
    if len(request.continuations) > limits.max_choices:
        raise InvalidRequest(f"{len(request.continuations)} continuations; at most {limits.max_choices}")
    if not all(request.continuations):
        raise InvalidRequest("a continuation is empty; leave it out")
    size = sum(len(text.encode()) for text in request.continuations)
    if size > limits.max_prompt_bytes:
        raise TooLarge(f"the continuations have {size} bytes; at most {limits.max_prompt_bytes}")
    _check_labels(request.context, limits, model=request.model, request_id=request.request_id)
    _check_hops(request.hops, limits)


def _check_hops(hops: int, limits: RequestLimits) -> None:
    if hops < 0:
        raise InvalidRequest(f"hops is {hops}; it starts at 0")
    if hops > limits.max_hops:
        raise TooManyHops(
            f"the request passed {hops} nodes, more than {limits.max_hops} (max_hops); "
            "check that no node is its own upstream"
        )


def _check_text(messages: tuple[Message, ...], prompt: str, limits: RequestLimits) -> None:
    if messages and prompt:
        raise InvalidRequest("give messages or prompt, not both")
    if not messages and not prompt:
        raise InvalidRequest("messages is empty and there is no prompt; give at least one message")
    if len(messages) > limits.max_messages:
        raise TooLarge(f"{len(messages)} messages; at most {limits.max_messages}")
    for index, message in enumerate(messages):
        if message.role not in ROLES:
            raise InvalidRequest(f"messages[{index}].role is {_shown(message.role)}; use one of {', '.join(ROLES)}")
        if message.tool_calls and message.role != "assistant":
            raise InvalidRequest(f"messages[{index}] has tool_calls; only an assistant's may")
    if messages and not any(message.content.strip() or message.tool_calls for message in messages):
        raise InvalidRequest("every message is empty; say something")
    size = sum(_message_bytes(message) for message in messages) + len(prompt.encode())
    if size > limits.max_prompt_bytes:
        raise TooLarge(f"the prompt has {size} bytes; at most {limits.max_prompt_bytes}")


def _message_bytes(message: Message) -> int:
    calls = sum(len(call.name.encode()) + len(call.arguments.encode()) for call in message.tool_calls)
    return len(message.content.encode()) + calls


def _check_sampling(s: Sampling, limits: RequestLimits) -> None:
    if s.max_tokens is not None and s.max_tokens < 1:
        raise InvalidRequest(f"max_tokens is {s.max_tokens}; it must be at least 1")
    if s.temperature is not None and not 0 <= s.temperature <= 2:  # False for NaN as well
        raise InvalidRequest(f"temperature is {s.temperature}; it must lie between 0 and 2")
    if s.top_p is not None and not 0 < s.top_p <= 1:
        raise InvalidRequest(f"top_p is {s.top_p}; it must be above 0 and at most 1")
    if s.top_k is not None and s.top_k < 0:
        raise InvalidRequest(f"top_k is {s.top_k}; it must be 0 (off) or more")
    if s.min_p is not None and not 0 <= s.min_p <= 1:
        raise InvalidRequest(f"min_p is {s.min_p}; it must lie between 0 and 1")
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(s, name)
        if value is not None and not -2 <= value <= 2:
            raise InvalidRequest(f"{name} is {value}; it must lie between -2 and 2")
    if s.repetition_penalty is not None and not 0 < s.repetition_penalty <= 10:
        raise InvalidRequest(f"repetition_penalty is {s.repetition_penalty}; it must be above 0 and at most 10")
    if len(s.logit_bias) > limits.max_logit_bias:
        raise InvalidRequest(f"logit_bias names {len(s.logit_bias)} tokens; at most {limits.max_logit_bias}")
    for token, bias in s.logit_bias.items():
        if token < 0 or not -100 <= bias <= 100:
            raise InvalidRequest(f"logit_bias gives token {token} {bias}; a token id from 0 and a bias of -100 to 100")


def _check_stop(stop: tuple[str, ...], limits: RequestLimits) -> None:
    if len(stop) > limits.max_stop_sequences:
        raise InvalidRequest(f"{len(stop)} stop sequences; at most {limits.max_stop_sequences}")
    for text in stop:
        if not text:
            raise InvalidRequest("a stop sequence is empty; leave it out")
        if len(text.encode()) > limits.max_stop_bytes:
            raise InvalidRequest(f"a stop sequence is longer than {limits.max_stop_bytes} bytes")


def commit_prefix(rule: str) -> int | None:
    """The number of tokens of a "prefix:<tokens>" rule; None for "end". Raises InvalidRequest."""
    if rule == "end":
        return None
    head, _, tail = rule.partition(":")
    if head == "prefix" and tail.isdecimal() and len(tail) <= 4 and 1 <= int(tail) <= 4096:
        return int(tail)
    raise InvalidRequest(f"commit_rule is {_shown(rule)}; use 'end' or 'prefix:<tokens>'")


def _shown(text: str) -> str:
    """What a caller sent, for a message that must fit gRPC's trailing metadata."""
    return repr(text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…")


def _check_risk(max_risk: float | None) -> None:
    if max_risk is not None and not 0 <= max_risk <= 1:
        raise InvalidRequest(f"max_risk is {max_risk}; it must lie between 0 and 1")


def _check_form(form: ResponseFormat | None, limits: RequestLimits) -> None:
    if form is None:
        return
    if form.type not in FORMS:
        raise InvalidRequest(f"response_format is {_shown(form.type)}; use text, json_object, json_schema or choice")
    if sum(len(text.encode()) for text in (form.json_schema, form.name, form.description)) > limits.max_schema_bytes:
        raise TooLarge(f"the JSON schema is longer than {limits.max_schema_bytes} bytes")
    if form.type == "json_schema" and not form.json_schema:
        raise InvalidRequest("response_format is json_schema and json_schema is empty; give the schema")
    if (form.type == "choice") is not bool(form.choices):
        raise InvalidRequest("response_format choice goes with choices; give both or neither")
    if len(form.choices) > limits.max_choices:
        raise InvalidRequest(f"{len(form.choices)} choices; at most {limits.max_choices}")
    if len(set(form.choices)) < len(form.choices) or not all(form.choices):
        raise InvalidRequest("choices must differ and none may be empty")
    if sum(len(choice.encode()) for choice in form.choices) > limits.max_schema_bytes:
        raise TooLarge(f"the choices are longer than {limits.max_schema_bytes} bytes together")


def _check_tools(request: GenerateRequest, limits: RequestLimits) -> None:
    names = [tool.name for tool in request.tools]
    if len(names) > limits.max_tools:
        raise TooLarge(f"{len(names)} tools; at most {limits.max_tools}")
    for tool in request.tools:
        if not _TOOL_NAME.fullmatch(tool.name):
            raise InvalidRequest(
                f"a tool is named {_shown(tool.name)}; use 1 to 64 letters, digits, dots, dashes and underscores"
            )
        if len(tool.parameters.encode()) + len(tool.description.encode()) > limits.max_schema_bytes:
            raise TooLarge(f"tool {tool.name} is longer than {limits.max_schema_bytes} bytes")
    if len(set(names)) < len(names):
        raise InvalidRequest("two tools have the same name")
    kind, _, name = request.tool_choice.partition(":")
    if kind not in ("", "auto", "none", "required", "function") or (kind == "function") is not bool(name):
        raise InvalidRequest(f"tool_choice is {_shown(request.tool_choice)}; use auto, none, required or function:NAME")
    if name and name not in names:
        raise InvalidRequest(f"tool_choice names {_shown(name)}, which is not among the tools")
    if kind == "required" and not names:
        raise InvalidRequest("tool_choice is required and there are no tools")


def _labels_of(request: GenerateRequest) -> dict[str, str]:
    return {
        "model": request.model,
        "idempotency_key": request.idempotency_key,
        "request_id": request.request_id,
    }


def _check_labels(c: Context, limits: RequestLimits, **others: str) -> None:
    labels = {
        **others,
        "session_id": c.session_id,
        "tenant": c.tenant,
        "site": c.site,
        "request_class": c.request_class,
        "subject": c.subject,
    }
    for name, text in labels.items():
        if len(text.encode()) > limits.max_label_bytes:
            raise InvalidRequest(f"{name} is longer than {limits.max_label_bytes} bytes")
    if c.value is not None and not (math.isfinite(c.value) and c.value >= 0):
        raise InvalidRequest(f"context.value is {c.value}; it must be a number from 0 up")


def _check_draft(draft: Draft, limits: RequestLimits) -> None:
    if len(draft.logprobs) not in (0, len(draft.token_ids)):
        raise InvalidRequest(
            f"the draft has {len(draft.token_ids)} tokens and {len(draft.logprobs)} log-probabilities; "
            "give one for each or none"
        )
    if any(token < 0 for token in draft.token_ids):
        raise InvalidRequest("the draft has a negative token id")
    if len(draft.token_ids) > limits.max_prompt_bytes:
        raise TooLarge(f"the draft has {len(draft.token_ids)} tokens; at most {limits.max_prompt_bytes}")
