"""Log-probs in OpenAI's two shapes. Pure.

An entry belongs to the text its token made certain: tokens that made none visible (those of a stop
sequence, those of a tool's call) have none. A tier that does not tell its tokens' bytes gives
`token_id:N` and null bytes, which is not made up from the answer's text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wire.messages import Delta, TokenLogprob

Json = dict[str, Any]


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


def entries(delta: Delta, top: int) -> list[Json]:
    """A delta's tokens in the chat shape."""
    count = len(delta.token_ids)
    texts: Sequence[bytes | None] = delta.token_bytes if len(delta.token_bytes) == count else (None,) * count
    tops = delta.top_logprobs if len(delta.top_logprobs) == count else ((),) * count
    told = zip(delta.token_ids, delta.logprobs, texts, tops, strict=False)
    return [
        _entry(token_id, logprob, text) | {"top_logprobs": [_alternative(other) for other in others[:top]]}
        for token_id, logprob, text, others in told
    ]


def chat_shape(content: Sequence[Json]) -> Json:
    return {"content": list(content), "refusal": None}


def completion_shape(content: Sequence[Json], offset: int) -> Json:
    """The same for completions; `offset` is where the first token's text begins, in characters."""
    offsets = []
    for entry in content:
        offsets.append(offset)
        offset += len(entry["token"])
    tops = [{other["token"]: other["logprob"] for other in entry["top_logprobs"]} for entry in content]
    return {
        "tokens": [entry["token"] for entry in content],
        "token_logprobs": [entry["logprob"] for entry in content],
        "top_logprobs": tops if any(tops) else None,
        "text_offset": offsets,
    }


def _entry(token_id: int, logprob: float, text: bytes | None) -> Json:
    if text is None:
        return {"token": f"token_id:{token_id}", "logprob": logprob, "bytes": None}
    return {"token": text.decode(errors="replace"), "logprob": logprob, "bytes": list(text)}


def _alternative(other: TokenLogprob) -> Json:
    return _entry(other.token_id, other.logprob, other.text or None)
