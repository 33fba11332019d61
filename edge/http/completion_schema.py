"""What a completion request may say, field by field. See edge.http.fields for the rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError

from edge.http.fields import Common, FieldRefused, Texts, refusal, said

MOST_PROMPTS = 16
MOST_ANSWERS = 16  # prompts times n
MOST_LOGPROBS = 20

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {"suffix": ("",), "best_of": (1,)}


class CompletionRequest(Common):
    """The body of POST /v1/completions."""

    prompt: Texts
    echo: bool = False
    logprobs: int | None = Field(default=None, ge=0, le=MOST_LOGPROBS)

    @property
    def prompts(self) -> list[str]:
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt


def parse(document: Any) -> CompletionRequest:
    """A JSON document as a CompletionRequest. Raises InvalidRequest naming the field at fault."""
    given = said(document, _NEUTRAL)
    _refuse_tokens(given.get("prompt"))
    try:
        body = CompletionRequest.model_validate(given)
    except ValidationError as error:
        raise refusal(error) from error
    prompts = body.prompts
    if not prompts or not all(prompts):
        raise FieldRefused("prompt is empty; say something", "prompt")
    if len(prompts) > MOST_PROMPTS:
        raise FieldRefused(f"prompt holds {len(prompts)} texts; at most {MOST_PROMPTS}", "prompt")
    if len(prompts) * body.n > MOST_ANSWERS:
        raise FieldRefused(f"{len(prompts)} prompts with n {body.n} make too many answers; at most {MOST_ANSWERS}", "n")
    if body.echo and body.logprobs is not None:
        raise FieldRefused("echo with logprobs is not supported here; leave one out", "echo", "unsupported_parameter")
    if body.stream_options is not None and not body.stream:
        raise FieldRefused("stream_options goes with stream true alone", "stream_options")
    return body


def _refuse_tokens(prompt: Any) -> None:
    if isinstance(prompt, list) and any(isinstance(part, int | list) for part in prompt):
        message = "prompt as token ids is not supported here; send text"
        raise FieldRefused(message, "prompt", "unsupported_parameter")
