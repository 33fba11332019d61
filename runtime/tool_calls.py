"""Calls of tools in a model's text: the forms they come in, and taking them out of a stream.

Invariants: once a call may have begun, none of its text is shown before it is known to be none; a
call is whole, names a tool that was offered, and has a JSON object as its arguments, or else its
text is shown as text, never lost. How the text was cut into pieces does not change the result.

Two forms are recognised from every model: `<tool_call>{"name": …, "arguments": {…}}</tool_call>` anywhere
(Hermes, Qwen and our own text), and the bare JSON of one call as the whole answer (Llama says
`parameters`, Mistral puts it into a list).

Must not know: tokens, templates, transports.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from runtime import foreign_json

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `arguments` is a JSON object, as the model wrote it."""

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a model is made to write one call: `begin`, a JSON object with `name` and `key`, `end`.

    `trigger` is what it writes first when it calls of its own accord; empty where nothing tells.
    """

    begin: str
    end: str
    key: str = "arguments"
    trigger: str = ""


TAGGED = CallForm(f"{OPEN}\n", f"\n{CLOSE}", trigger=OPEN)
BARE = CallForm("", "")
BARE_PARAMETERS = CallForm("", "", key="parameters")
LISTED = CallForm("[", "]")


def form_of(template: str | None) -> CallForm:
    """The form a chat template that knows tools teaches; TAGGED where it teaches none."""
    if template is None or OPEN in template:
        return TAGGED
    if "[TOOL_CALLS]" in template:
        return LISTED
    return BARE_PARAMETERS if '"parameters"' in template else BARE


class _State(enum.Enum):
    START = enum.auto()  # nothing but white space so far
    TEXT = enum.auto()
    BARE = enum.auto()  # the answer began as a call's bare JSON does
    TAGGED = enum.auto()  # inside <tool_call>
    AFTER = enum.auto()  # white space after a call


class CallSplitter:
    """One answer's text in, text to show and calls out. `names` are the tools that were offered."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._state = _State.START
        self._held = ""
        self._searched = 0  # of `_held`, while TAGGED: no end tag before it closes the call
        self._calls: list[Call] = []

    def push(self, text: str) -> str:
        """The text that may be shown now."""
        self._held += text
        shown = []
        while True:
            before = self._state
            shown.append(self._advance())
            if self._state is before:
                return "".join(shown)

    def finish(self) -> tuple[str, tuple[Call, ...]]:
        """What was held back and is text after all, and the calls. The answer has ended."""
        held, self._held = self._held, ""
        if self._state in (_State.BARE, _State.TAGGED):
            tagged = self._state is _State.TAGGED
            found = parse_calls(held.removeprefix(OPEN) if tagged else held, self._names, tagged=tagged)
            if found:
                self._calls.extend(found)
                held = ""
        elif self._state is _State.AFTER:
            held = ""
        return held, tuple(self._calls)

    def _advance(self) -> str:
        match self._state:
            case _State.START | _State.AFTER:
                self._settle()
                return ""
            case _State.BARE:
                if not _may_be_bare_call(self._held, self._names):
                    self._state = _State.TEXT
                return ""
            case _State.TEXT:
                return self._text()
            case _State.TAGGED:
                self._close()
        return ""

    def _settle(self) -> None:
        """White space waits for what follows it: before and after a call it is none of the answer's text."""
        text = self._held.lstrip()
        if not text or (OPEN.startswith(text) and text != OPEN):
            return
        if text.startswith(OPEN):
            self._held, self._state, self._searched = text, _State.TAGGED, len(OPEN)
        elif self._state is _State.START and text[0] in "{[":
            self._state = _State.BARE
        else:
            self._state = _State.TEXT

    def _text(self) -> str:
        held = self._held
        begin = held.find(OPEN)
        if begin >= 0:
            self._held, self._state, self._searched = held[begin:], _State.TAGGED, len(OPEN)
            return held[:begin]
        keep = next((n for n in range(min(len(OPEN) - 1, len(held)), 0, -1) if OPEN.startswith(held[-n:])), 0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def _close(self) -> None:
        """Ends a call at the first end tag that makes it one: an argument may hold such a tag as well."""
        while (end := self._held.find(CLOSE, self._searched)) >= 0:
            found = parse_calls(self._held[len(OPEN) : end], self._names, tagged=True)
            self._searched = end + len(CLOSE)
            if found:
                self._calls.extend(found)
                self._held, self._state = self._held[self._searched :], _State.AFTER
                return
        self._searched = max(self._searched, len(self._held) - len(CLOSE) + 1)


def parse_calls(text: str, names: Collection[str], *, tagged: bool) -> tuple[Call, ...]:
    """The call that `text` is, as JSON of one or of a list with one; none when it is anything else.

    Without tags nothing but its keys tells a call from an answer, so they must be a call's.
    """
    text = text.strip()
    if not tagged:
        text = text.removesuffix(CLOSE).rstrip()
    try:
        document = foreign_json.read(text)
    except foreign_json.NotJson:
        return ()
    if isinstance(document, list):
        document = document[0] if len(document) == 1 else None
    call = _call(document, text, names, tagged)
    return () if call is None else (call,)


def _call(document: Any, text: str, names: Collection[str], tagged: bool) -> Call | None:
    if isinstance(document, dict) and isinstance(document.get("function"), dict):
        document = document["function"]
    if not isinstance(document, dict) or document.get("name") not in names:
        return None
    if not tagged and not (set(document) <= _KEYS and _ARGUMENTS & set(document)):
        return None
    key = next((key for key in ("arguments", "parameters") if key in document), "arguments")
    arguments = document.get(key, {})
    if isinstance(arguments, str):  # some models write the object as a string of JSON
        try:
            inner = foreign_json.read(arguments)
        except foreign_json.NotJson:
            return None
        return Call(document["name"], arguments) if isinstance(inner, dict) else None
    return Call(document["name"], _as_written(text, key, arguments)) if isinstance(arguments, dict) else None


def _as_written(text: str, key: str, value: dict[str, Any]) -> str:
    """The part of `text` that says `value` under `key`: numbers keep the digits the model gave them."""
    for found in re.finditer(rf'"{key}"\s*:\s*', text):
        try:
            read, end = foreign_json.read_at(text, found.end())
        except foreign_json.NotJson:
            continue
        if read == value:
            return text[found.end() : end]
    return json.dumps(value)


_ARGUMENTS = frozenset(("arguments", "parameters"))
_KEYS = _ARGUMENTS | {"name", "id", "type"}
_FIRST_KEYS = ("name", "arguments", "parameters", "id", "type", "function")
_BEGUN = re.compile(r'\s*(?:\[\s*)?\{\s*"([^"]*)("?)')
_NAMED = re.compile(r'\s*(?:\[\s*)?\{\s*"name"\s*:\s*"([^"\\]*)("?)')
_NOT_YET = re.compile(r"\s*(?:\[\s*)?(?:\{\s*)?")


def _may_be_bare_call(text: str, names: Collection[str]) -> bool:
    """Whether more text could make a call of this one."""
    begun = _BEGUN.match(text)
    if begun is None:
        return _NOT_YET.fullmatch(text) is not None
    key, closed = begun.groups()
    if not (key in _FIRST_KEYS if closed else any(known.startswith(key) for known in _FIRST_KEYS)):
        return False
    named = _NAMED.match(text)
    if named is None:
        return True
    name, closed = named.groups()
    return name in names if closed else any(known.startswith(name) for known in names)
