"""The log-probs of tokens as endpoints tell them: a chat's entries, or the parallel lists of completions.

Neither tells the tokens' ids. Numbers that JSON does not have must not reach a client's: what some servers write as
-Infinity has OpenAI's least; whatever else is no number makes a broken answer, or of an alternative none. There is
no more of them than was asked for, whatever an endpoint sends. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from edge.openai_upstream.faults import broken
from wire.messages import LEAST_LOGPROB, GenerateRequest, TokenLogprob

_ABSURD = 1e30
_MOST_TOKENS = 1 << 17  # of an answer that has no limit of its own
_MOST_TOKEN_BYTES = 1024
_SPELLED = re.compile(r"bytes:(\\x[0-9a-fA-F]{2})+")
Ranked = tuple[TokenLogprob, tuple[TokenLogprob, ...]]


@dataclass(slots=True)
class Logprobs:
    """Those of one answer as they come in: `top` alternatives a token, `left` tokens; `wanted` at all?"""

    wanted: bool
    top: int
    left: int

    @classmethod
    def of(cls, request: GenerateRequest) -> Logprobs:
        """What a request asks for."""
        wanted = request.return_logprobs or request.top_logprobs > 0
        most = request.sampling.max_tokens
        return cls(wanted, request.top_logprobs, _MOST_TOKENS if most is None else min(most, _MOST_TOKENS))

    def ranked(self, told: Any) -> list[Ranked]:
        """Each token with its alternatives. Raises Unavailable."""
        if not self.wanted or not isinstance(told, dict):
            return []
        entries = told.get("content") or told.get("refusal")
        if isinstance(entries, list):
            self._count(len(entries))
            return [self._entry(entry) for entry in entries]
        return self._of_lists(told) if isinstance(told.get("tokens"), list) else []

    def _count(self, tokens: int) -> None:
        if tokens > self.left:
            raise broken("it has log-probs of more tokens than were asked for")
        self.left -= tokens

    def _entry(self, entry: Any) -> Ranked:
        if not isinstance(entry, dict):
            raise broken("a log-prob is no JSON object")
        value = _number(entry.get("logprob"))
        if value is None:
            raise broken("a log-prob is no number")
        top = entry.get("top_logprobs")
        return _token(entry, value), self._alternatives(top if isinstance(top, list) else [])

    def _of_lists(self, told: Mapping[str, Any]) -> list[Ranked]:
        """Completions tell `tokens`, `token_logprobs`, `top_logprobs`: texts, numbers, a map of texts to numbers."""
        tokens, values, tops = told["tokens"], told.get("token_logprobs"), told.get("top_logprobs")
        if not isinstance(values, list) or len(values) != len(tokens):
            raise broken("tokens and token_logprobs differ in length")
        self._count(len(tokens))
        others = tops if isinstance(tops, list) and len(tops) == len(tokens) else [None] * len(tokens)
        found: list[Ranked] = []
        for token, value, top in zip(tokens, values, others, strict=True):
            entries = ({"token": text, "logprob": of} for text, of in top.items()) if isinstance(top, dict) else ()
            found.append((self._entry({"token": token, "logprob": value})[0], self._alternatives(entries)))
        return found

    def _alternatives(self, entries: Iterable[Any]) -> tuple[TokenLogprob, ...]:
        numbers = ((entry, _number(entry.get("logprob"))) for entry in entries if isinstance(entry, dict))
        sound = ((entry, value) for entry, value in numbers if value is not None)
        return tuple(_token(entry, value) for entry, value in islice(sound, self.top))


def _token(entry: Mapping[str, Any], value: float) -> TokenLogprob:
    raw, text = entry.get("bytes"), entry.get("token")
    if any(isinstance(told, list | str) and len(told) > _MOST_TOKEN_BYTES for told in (raw, text)):
        raise broken(f"a token has more than {_MOST_TOKEN_BYTES} bytes, which is the most")
    if isinstance(raw, list) and all(isinstance(byte, int) and 0 <= byte < 256 for byte in raw):
        return TokenLogprob(0, value, bytes(raw))
    return TokenLogprob(0, value, _bytes(text) if isinstance(text, str) else b"")


def _bytes(text: str) -> bytes:
    """Completions spell a token that is no whole characters `bytes:\\xc3`."""
    if _SPELLED.fullmatch(text):
        return bytes.fromhex(text.removeprefix("bytes:").replace("\\x", ""))
    return text.encode(errors="replace")


def _number(value: Any) -> float | None:
    """A log-prob that JSON can hold; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value < _ABSURD:  # nor is NaN
        return None
    return float(max(value, LEAST_LOGPROB))
