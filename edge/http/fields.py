"""What the fields of every OpenAI request have in common: strictness, the harmless, the off, the refusals.

Nothing that was asked for is silently dropped: an unknown or unsupported field is refused by its name.
Labels for the caller's own books (LABELS) are accepted and not used. Fields at the value that means "off"
or "as usual" (OFF, and a request's own table) are accepted too, because some clients always send them.
A null means the field was not given. An absent temperature means greedy on the edge.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError

from wire.errors import InvalidRequest

LABELS = frozenset(("user", "safety_identifier", "prompt_cache_key"))
OFF: Mapping[str, tuple[Any, ...]] = {
    "store": (False,),
    "metadata": ({},),  # labels what was stored, and nothing is
    "service_tier": ("auto", "default"),
    "prompt_cache_retention": ("in_memory", "in-memory"),
}
_MOST_LABEL = 512

INT32 = (1 << 31) - 1
UINT64 = (1 << 64) - 1
MOST_CHOICES = 8
Label = Annotated[str, Field(max_length=_MOST_LABEL)]
TokenCount = Annotated[int, Field(le=INT32, ge=-INT32)]


class FieldRefused(InvalidRequest):
    """One field is at fault: `param` is its path, `code` one of OpenAI's words for such faults."""

    def __init__(self, message: str, param: str | None, code: str | None = None) -> None:
        super().__init__(message)
        self.param, self.code = param, code


class Strict(BaseModel):
    """No unknown fields, no conversions, no numbers that are none."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(Strict):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class WeirOptions(Strict):
    """Weir's own part of the body, under `weir`. See wire.messages.Constraints and Context."""

    constraint: Literal["auto", "edge_only", "cloud_only"] | None = None
    max_risk: float | None = None
    commit_rule: str = ""
    deadline_ms: float | None = None
    idempotency_key: Label = ""
    session_id: Label = ""
    tenant: Label = ""
    site: Label = ""
    request_class: Label = ""
    value: float | None = None
    priority: int = Field(default=0, ge=-INT32, le=INT32)
    subject: Label = ""


# A union's members, where a path goes through them.
WORD, WORDS, OBJECT = "(text)", "(list)", "(object)"
_NO_VALUE = "unsupported_value"


def member(value: Any) -> str:
    """Which member of a union of texts, lists and objects a value is meant to be."""
    return WORDS if isinstance(value, list) else OBJECT if isinstance(value, dict) else WORD


Texts = Annotated[Annotated[str, Tag(WORD)] | Annotated[list[str], Tag(WORDS)], Discriminator(member)]


class Common(Strict):
    """The fields that chat completions and completions share. `top_k`, `min_p`, `repetition_penalty`: extensions."""

    model: str
    max_tokens: TokenCount | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: TokenCount | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] = Field(default_factory=dict)
    seed: int | None = Field(default=None, ge=0, le=UINT64)
    stop: Texts = Field(default_factory=list)
    n: int = Field(default=1, ge=1, le=MOST_CHOICES)
    stream: bool = False
    stream_options: StreamOptions | None = None
    weir: WeirOptions = Field(default_factory=WeirOptions)


def said(document: Any, neutral: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """The fields of a body that say something. Raises InvalidRequest, FieldRefused."""
    if not isinstance(document, dict):
        raise InvalidRequest("the body must be a JSON object")
    for name in LABELS & document.keys():
        value = document[name]
        if value is not None and not (isinstance(value, str) and len(value) <= _MOST_LABEL):
            raise FieldRefused(f"{name}: give text of at most {_MOST_LABEL} characters", name, "invalid_value")
    rest = {name: value for name, value in document.items() if name not in LABELS}
    return without_neutral(rest, {**OFF, **neutral})


def without_neutral(document: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """The fields that say something."""

    def kept(name: str, value: Any) -> bool:
        off = name in neutral and any(value == choice and type(value) is type(choice) for choice in neutral[name])
        return value is not None and not off

    return {name: value for name, value in document.items() if kept(name, value)}


def refusal(error: ValidationError) -> FieldRefused:
    """The first fault of a body, in words that name its field."""
    fault = error.errors(include_url=False)[0]
    name = _path(fault["loc"])
    match fault["type"]:
        case "missing":
            return FieldRefused(f"{name} is missing", name, "missing_required_parameter")
        case "extra_forbidden":
            message = f"{name} is not supported here; leave it out (nothing is dropped silently)"
            return FieldRefused(message, name, "unsupported_parameter")
        case "union_tag_invalid":
            wanted = str(fault["ctx"]["expected_tags"]).replace("'", "").replace(", ", " or ")
            return FieldRefused(f"{name}: give {wanted}", name, "invalid_value")
        case _:
            shown = repr(fault["input"])
            shown = shown if len(shown) <= 80 else shown[:77] + "..."
            return FieldRefused(f"{name}: {fault['msg']}; got {shown}", name, "invalid_value")


def demand_kind(value: Any, known: str, where: str) -> None:
    """Raises FieldRefused where an object is of a `type` that is not served."""
    kind = value.get("type", known) if isinstance(value, dict) else known
    if kind != known:
        raise FieldRefused(f"{where}.type {kind!r:.40} is not supported here; use {known}", f"{where}.type", _NO_VALUE)


def _path(location: tuple[int | str, ...]) -> str:
    """messages.0.content.(list).1.type → messages[0].content[1].type"""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in (WORD, WORDS, OBJECT):
            path += f".{part}" if path else part
    return path or "body"
