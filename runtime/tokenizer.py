"""A release's tokenizer and chat template, read from its folder.

Templates come with models and are untrusted: they run in jinja2's immutable sandbox and see the
messages and tools only. Equal folders give equal token ids on every tier, which `digest` states.

Must not know: transformers, releases, transports.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.sandbox
import tokenizers

from runtime.chat import ToolSpec, Turn, described, message, woven
from runtime.token_bounds import most_bytes
from runtime.token_bytes import Spelling, spelling_of
from runtime.tool_calls import CallForm, form_of

# Tokens that end a turn in the chat formats of common model families. A model may end its answer with
# one that its configuration does not name (its end of text, say, beside its end of turn).
_ENDS_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "</s>")

# Characters to a token from which on a text is looked at before it is encoded: text that is read has about four.
_LONG = 16


class TokenizerError(ValueError):
    """The folder's tokenizer or chat template cannot be used; the message says which and why."""


class TemplateError(ValueError):
    """The chat template refuses these messages; the message says why."""


class TooManyTokens(ValueError):
    """A text has `told` tokens, more than the caller takes."""

    def __init__(self, count: int, most: int, *, at_least: bool = False) -> None:
        """`at_least`: the text was too long to be counted."""
        self.told = f"at least {count}" if at_least else str(count)
        super().__init__(f"the text has {self.told} tokens, more than {most}")
        self.count, self.most = count, most


class Tokenizer:
    """Text ↔ token ids for one model. Thread-safe."""

    def __init__(
        self,
        tokenizer_json: bytes,
        config: dict[str, Any],
        chat_template: str | None = None,
        stop_ids: Iterable[int] = (),
        known: Tokenizer | None = None,
    ) -> None:
        """`stop_ids` are further end tokens, as a generation configuration names them.

        `known` lends what it parsed where tokenizer.json is the same: parsing one holds the interpreter
        lock for a few hundred milliseconds.
        """
        self.digest = hashlib.sha256(tokenizer_json).hexdigest()
        same = known is not None and known.digest == self.digest
        self._tokenizer: tokenizers.Tokenizer = known._tokenizer if known and same else _parse(tokenizer_json)
        self.vocab_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        names = {name: _token_text(config.get(name)) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
        ends = (self._tokenizer.token_to_id(text) for text in (names["eos_token"], *_ENDS_OF_TURN) if text)
        self.stop_ids = frozenset(stop_ids) | {end for end in ends if end is not None}
        source = chat_template or config.get("chat_template")
        self._template_source = source if isinstance(source, str) else None
        self._template = _compile(source)
        self._template_knows_tools = self._template is not None and _mentions_tools(source)
        self._names = {name: text for name, text in names.items() if text}
        self._spelling: Spelling | None = known._spelling if known and same else spelling_of(self._tokenizer)
        self._most_bytes: int | None = known._most_bytes if known and same else 0  # 0: not looked at yet

    @classmethod
    def load(cls, folder: Path, stop_ids: Iterable[int] = (), known: Tokenizer | None = None) -> Tokenizer:
        """Reads tokenizer.json, tokenizer_config.json and chat_template.jinja. Raises TokenizerError."""
        try:
            tokenizer_json = (folder / "tokenizer.json").read_bytes()
        except OSError as error:
            raise TokenizerError(f"{folder} has no readable tokenizer.json: {error}") from error
        try:
            config = json.loads(_optional(folder / "tokenizer_config.json") or "{}")
        except json.JSONDecodeError as error:
            raise TokenizerError(f"{folder / 'tokenizer_config.json'} is not JSON: {error}") from error
        return cls(tokenizer_json, config, _optional(folder / "chat_template.jinja"), stop_ids, known)

    @property
    def id_count(self) -> int:
        """One more than the highest id, which is `vocab_size` or, where ids were left out, more."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def encode(self, text: str, special_tokens: bool = True, most: int | None = None) -> list[int]:
        """Token ids of a plain text, with the tokens the model expects around it.

        Raises TooManyTokens for a text of more than `most`. Other threads run on meanwhile.
        """
        if most is not None and len(text) > most * _LONG:
            self._demand_short(text, most)
        # The batch call is the one that lets go of the interpreter lock, for a long text seconds; and
        # only counting first keeps the ids of an over-long text from being copied while it is held.
        encoding = self._tokenizer.encode_batch_fast([text], add_special_tokens=special_tokens)[0]
        if most is not None and len(encoding) > most:
            raise TooManyTokens(len(encoding), most)
        ids: list[int] = encoding.ids
        return ids

    def _demand_short(self, text: str, most: int) -> None:
        """Refuses by its length alone what cannot have as few tokens as `most`."""
        if self._most_bytes == 0:
            self._most_bytes = most_bytes(self._tokenizer)
        if self._most_bytes is not None and (least := len(text) // self._most_bytes) > most:
            raise TooManyTokens(least, most, at_least=True)

    @property
    def takes_pairs(self) -> bool:
        """Whether it marks where a second text begins."""
        return bool(self._tokenizer.num_special_tokens_to_add(is_pair=True))

    def encode_pair(self, text: str, pair: str, most: int, *, cut: bool) -> tuple[list[int], list[int]]:
        """Ids of two texts as one, and for each token the text it is of (0 or 1).

        Too many tokens are cut from the longer text's end first, or raise TooManyTokens.
        """
        first, second = self._tokenizer.encode_batch_fast([text, pair], add_special_tokens=False)
        around = self._tokenizer.num_special_tokens_to_add(is_pair=True)
        total = len(first) + len(second) + around
        if total > most:
            if not cut:
                raise TooManyTokens(total, most)
            room = max(most - around, 0)
            short = min(len(first), len(second), room // 2)
            first.truncate(short if len(first) <= len(second) else room - short)
            second.truncate(room - len(first))
        whole = self._tokenizer.post_process(first, second)
        return whole.ids, whole.type_ids

    @property
    def call_form(self) -> CallForm:
        """How this model is made to call a tool."""
        return form_of(self._template_source if self._template_knows_tools else None)

    def encode_chat(
        self,
        messages: Sequence[tuple[str, str] | Turn],
        most: int | None = None,
        tools: Sequence[ToolSpec] = (),
    ) -> list[int]:
        """Token ids of a conversation, up to where the assistant's answer begins.

        `messages` are turns, or (role, content). Raises TemplateError, TooManyTokens.
        """
        return self.encode(self.render(messages, tools), special_tokens=False, most=most)

    def render(self, messages: Sequence[tuple[str, str] | Turn], tools: Sequence[ToolSpec] = ()) -> str:
        """The conversation as the text the model was trained on. Raises TemplateError."""
        if self._template is None:
            raise TemplateError("this model has no chat template; send a prompt instead of messages")
        turns = [turn if isinstance(turn, Turn) else Turn(*turn) for turn in messages]
        if not tools and not any(turn.calls or turn.role == "tool" for turn in turns):
            return self._rendered(self._template, turns)
        if self._template_knows_tools:
            return self._rendered(self._template, turns, tools)
        try:
            return self._rendered(self._template, _woven(turns, tools))
        except TemplateError:
            # Some templates know no system turn: the first user's turn tells of the tools then.
            return self._rendered(self._template, _woven(turns, tools, "user"))

    def _rendered(self, template: jinja2.Template, turns: Sequence[Turn], tools: Sequence[ToolSpec] = ()) -> str:
        try:
            given = {"tools": [described(tool) for tool in tools]} if tools else {}
            messages = [message(turn) for turn in turns]
            return template.render(messages=messages, add_generation_prompt=True, **given, **self._names)
        except _TEMPLATE_FAULTS as error:
            raise TemplateError(f"the model's chat template refuses these messages: {error}") from error

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids`, without special tokens."""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for, which may be part of a character. Empty for an unknown id."""
        if self._spelling is not None:
            return self._spelling.spell(token_id)
        return self.decode((token_id,)).encode()

    @property
    def spelling(self) -> Spelling | None:
        """Every token's bytes; None for a kind of tokenizer whose tokens have none of their own."""
        return self._spelling


_TEMPLATE_FAULTS = (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError)


def _woven(turns: Sequence[Turn], tools: Sequence[ToolSpec], role: str = "system") -> list[Turn]:
    try:
        return woven(turns, tools, role)
    except (ValueError, RecursionError) as error:
        raise TemplateError(str(error)) from error


def _parse(tokenizer_json: bytes) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_buffer(tokenizer_json)
    except Exception as error:  # the library raises nothing narrower
        raise TokenizerError(f"tokenizer.json cannot be read: {error}") from error


def _optional(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{path} cannot be read: {error}") from error


def _token_text(token: object) -> str | None:
    """A token as configurations name it: its text, or an object with the text as `content`."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _compile(source: object) -> jinja2.Template | None:
    if source is None:
        return None
    if not isinstance(source, str):
        raise TokenizerError("tokenizer_config.json names several chat templates; keep one, as chat_template.jinja")
    environment = _environment()
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _today
    environment.filters["tojson"] = _to_json
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise TokenizerError(f"the chat template does not compile: {error}") from error


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    return jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )


def _mentions_tools(source: object) -> bool:
    return isinstance(source, str) and "tools" in jinja2.meta.find_undeclared_variables(_environment().parse(source))


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _today(pattern: str) -> str:
    return datetime.datetime.now(tz=datetime.UTC).strftime(pattern)


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
