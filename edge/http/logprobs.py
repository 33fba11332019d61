"""Log-probs in OpenAI's two shapes. Pure.

An entry belongs to the text its token made certain: tokens that made none visible (those of a stop
sequence, those of a tool's call) have none. A tier that does not tell its tokens' bytes gives
`token_id:N` and null bytes, which is not made up from the answer's text.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from wire.messages import LEAST_LOGPROB, Delta, TokenLogprob

Json = dict[str, Any]
_utf8 = codecs.getincrementaldecoder("utf-8")


class Entries:
    """The tokens of one answer, given out with the text that they made."""

    def __init__(self, top: int) -> None:
        self._top = top
        self._waiting: list[Json] = []

    def take(self, delta: Delta) -> list[Json]:
        """The entries to show with this delta's text."""
        self._waiting.extend(entries(delta, self._top))
        if not delta.text:
            return []
        taken, self._waiting = self._waiting, []
        return taken


def shown(deltas: Iterable[Delta], top: int) -> Iterator[tuple[Iterator[Json], str]]:
    """A whole answer's texts, each behind the entries that go with it, which are made as they are taken."""
    held: list[Delta] = []
    for delta in deltas:
        held.append(delta)
        if delta.text:
            yield (entry for one in held for entry in entries(one, top)), delta.text
            held = []


def entries(delta: Delta, top: int) -> Iterator[Json]:
    """A delta's tokens in the chat shape."""
    count = len(delta.token_ids)
    texts: Sequence[bytes | None] = delta.token_bytes if len(delta.token_bytes) == count else (None,) * count
    tops = delta.top_logprobs if len(delta.top_logprobs) == count else ((),) * count
    for token_id, logprob, text, others in zip(delta.token_ids, delta.logprobs, texts, tops, strict=False):
        yield _entry(token_id, logprob, text) | {"top_logprobs": [_alternative(other) for other in others[:top]]}


def chat_shape(content: Sequence[Json]) -> Json:
    return {"content": list(content), "refusal": None}


def whole_chat_shape(deltas: Iterable[Delta], top: int) -> Json:
    """The same of a whole answer, for edge.http.gradual."""
    return {"content": (entry for content, _ in shown(deltas, top) for entry in content), "refusal": None}


class Offsets:
    """Where in an answer's text each of its tokens begins, in characters. Feed it all of them, in order.

    A token that ends a character which others began begins where that character does. Tokens whose bytes nobody
    told begin, as far as is known, where the text that came with them does.
    """

    def __init__(self) -> None:
        self._decoder = _utf8("replace")
        self._at = self._shown = 0

    def take(self, content: Sequence[Json], text: str) -> list[int]:
        """The offsets of these tokens, which came with `text`."""
        return [offset for _, offset in self.place(content, text)]

    def place(self, content: Iterable[Json], text: str) -> Iterator[tuple[Json, int]]:
        """Each of these tokens with its offset. Take them all."""
        self._shown += len(text)
        known = True
        for entry in content:
            yield entry, self._at
            if entry["bytes"] is None:
                known = False
            else:
                self._at += len(self._decoder.decode(bytes(entry["bytes"])))
        if not known:
            self._decoder.reset()
            self._at = self._shown


def completion_shape(content: Sequence[Json], offsets: Sequence[int]) -> Json:
    """The same for completions."""
    tops = [_by_spelling(entry["top_logprobs"]) for entry in content]
    return {
        "tokens": [_spelled(entry) for entry in content],
        "token_logprobs": [entry["logprob"] for entry in content],
        "top_logprobs": tops if any(tops) else None,
        "text_offset": list(offsets),
    }


def whole_completion_shape(deltas: Iterable[Delta], top: int) -> Json:
    """The same of a whole answer, for edge.http.gradual: all is gathered as the tokens are written."""
    logprobs: list[float] = []
    tops: list[dict[str, float]] = []
    begun: list[int] = []

    def tokens() -> Iterator[str]:
        offsets = Offsets()
        for content, text in shown(deltas, top):
            for entry, offset in offsets.place(content, text):
                logprobs.append(entry["logprob"])
                tops.append(_by_spelling(entry["top_logprobs"]))
                begun.append(offset)
                yield _spelled(entry)

    return {
        "tokens": tokens(),
        "token_logprobs": lambda: iter(logprobs),
        "top_logprobs": lambda: iter(tops) if any(tops) else None,
        "text_offset": lambda: iter(begun),
    }


def _by_spelling(others: Sequence[Json]) -> dict[str, float]:
    """Of two tokens that spell the same, the likelier."""
    return {_spelled(other): other["logprob"] for other in sorted(others, key=lambda other: other["logprob"])}


def _spelled(entry: Json) -> str:
    """A token as a text of its own: as OpenAI has it, `bytes:\\xc3` for one that is no whole characters."""
    if entry["bytes"] is None:
        return str(entry["token"])
    data = bytes(entry["bytes"])
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _entry(token_id: int, logprob: float, text: bytes | None) -> Json:
    logprob = max(LEAST_LOGPROB, logprob)  # of NaN, too
    if text is None:
        return {"token": f"token_id:{token_id}", "logprob": logprob, "bytes": None}
    return {"token": text.decode(errors="replace"), "logprob": logprob, "bytes": list(text)}


def _alternative(other: TokenLogprob) -> Json:
    return _entry(other.token_id, other.logprob, other.text or None)
