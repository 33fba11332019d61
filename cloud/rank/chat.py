"""Prompts in, token ids out, and back: a model's tokenizer and chat template.

Raises InvalidRequest for what the template refuses and for prompts without any token.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import AutoTokenizer

from cloud.rank.folder import tokenizer_digest
from runtime.token_bytes import spelling_of
from wire.errors import InvalidRequest
from wire.messages import GenerateRequest


class Chat:
    """One model's tokenizer. Safe to use from several threads."""

    def __init__(self, model_dir: Path) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(model_dir)
        self.eos_token_ids = _eos_token_ids(model_dir, self._tokenizer)
        self.digest = tokenizer_digest(model_dir)
        self._spelling = spelling_of(self._tokenizer.backend_tokenizer) if self._tokenizer.is_fast else None

    def encode(self, request: GenerateRequest) -> list[int]:
        """The token ids of a request's prompt, ready for the model to continue."""
        ids = self._apply_template(request) if request.messages else self._tokenizer(request.prompt)["input_ids"]
        if not ids:
            raise InvalidRequest("the prompt gives no token; say something")
        return [int(token) for token in ids]

    def _apply_template(self, request: GenerateRequest) -> Any:
        if self._tokenizer.chat_template is None:
            raise InvalidRequest("this model has no chat template; send a raw prompt instead of messages")
        messages = [
            {"role": message.role, "content": message.content} | ({"name": message.name} if message.name else {})
            for message in request.messages
        ]
        try:
            return self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)[
                "input_ids"
            ]
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise InvalidRequest(f"the model's chat template refuses these messages: {error}") from error

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, without special tokens."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def token_bytes(self, token_ids: Sequence[int]) -> tuple[bytes, ...]:
        """Each token's own bytes; nothing for a kind of tokenizer whose tokens have none."""
        return () if self._spelling is None else tuple(self._spelling.spell(token) for token in token_ids)


def _eos_token_ids(model_dir: Path, tokenizer: Any) -> list[int]:
    """Every id that ends an answer: of the generation settings, the model's, the tokenizer's."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        path = model_dir / name
        ids = json.loads(path.read_text()).get("eos_token_id") if path.is_file() else None
        if ids is not None:
            found |= set(ids if isinstance(ids, list) else [ids])
    if tokenizer.eos_token_id is not None:
        found.add(int(tokenizer.eos_token_id))
    return sorted(found)
