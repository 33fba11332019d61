"""From token ids to text, piece by piece: no broken characters, no text past a stop sequence.

Invariants: the pieces of one stream, joined, are what decoding all its tokens at once gives, cut
before the stop sequence that completes first; how the tokens were grouped into pushes does not
change the result. A character whose bytes are spread over several tokens comes out whole, once.

Must not know: any tokenizer library, models, transports. Decoding is a callable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Decode = Callable[[Sequence[int]], str]

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A character has at most four bytes, so at most three can still be waiting for the rest of theirs.
_UNFINISHED_CHARACTERS = 3
# Tokens that stay undecodable this long are broken for good: bound the window they are decoded in.
_MOST_HELD_TOKENS = 32


class Detokenizer:
    """Decodes a growing sequence of tokens and gives each character once it is whole.

    Only a short window is decoded at every push: the tokens since the last clean border and, as
    context, those of the step before, because many decoders treat the first token of a text
    differently.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []  # the window: context, then tokens still in work
        self._context = 0
        self._given = ""  # text of the window that was given out, or belongs to the context

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that has become certain with these tokens; may be empty."""
        if not token_ids:
            return ""
        self._ids.extend(token_ids)
        text = self._decode(self._ids)
        held = len(self._ids) - self._context
        if text.endswith(_REPLACEMENT) and held < _MOST_HELD_TOKENS:
            return self._give(_without_unfinished(text))
        piece = self._give(text)
        if text == self._given or held >= _MOST_HELD_TOKENS:
            self._start_window(must=held >= _MOST_HELD_TOKENS)
        return piece

    def _start_window(self, must: bool) -> None:
        ids = self._ids[self._context :]
        text = self._decode(ids)
        if text or must:  # tokens without text are no context
            self._ids, self._context, self._given = ids, len(ids), text

    def finish(self) -> str:
        """What was held back; the stream has ended."""
        return self._give(self._decode(self._ids))

    def _give(self, text: str) -> str:
        # Decoders may show the start of a character as several replacements and take them back, so
        # text is given only where it continues what was given before.
        if not text.startswith(self._given):
            return ""
        piece = text[len(self._given) :]
        self._given = text
        return piece


def _without_unfinished(text: str) -> str:
    end = len(text)
    while end > 0 and len(text) - end < _UNFINISHED_CHARACTERS and text[end - 1] == _REPLACEMENT:
        end -= 1
    return text[:end]


class StopMatcher:
    """Passes text through until one of `stops` has appeared, which is never shown, nor is any after it.

    Text that may be the beginning of a stop sequence is held back until that is settled. Of several
    matches the one that completes first counts; of two that end together, the longer one.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The text that may be shown now; empty once stopped."""
        if self.stopped:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        cut = self._first_match(text)
        if cut is not None:
            self.stopped, self._held = True, ""
            return text[:cut]
        keep = self._possible_start(text)
        self._held = text[keep:]
        return text[:keep]

    def finish(self) -> str:
        """What was held back; the text has ended."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> int | None:
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _possible_start(self, text: str) -> int:
        longest = max(len(stop) for stop in self._stops) - 1
        for start in range(max(len(text) - longest, 0), len(text)):
            if any(stop.startswith(text[start:]) for stop in self._stops):
                return start
        return len(text)


@dataclass(frozen=True, slots=True)
class Piece:
    """Text to show, and whether a stop sequence has ended the answer."""

    text: str
    stopped: bool


class TextStream:
    """Tokens in, text out: a Detokenizer followed by a StopMatcher. One per answer."""

    def __init__(self, decode: Decode, stops: Sequence[str] = ()) -> None:
        self._detokenizer = Detokenizer(decode)
        self._stop = StopMatcher(stops)

    def push(self, token_ids: Sequence[int]) -> Piece:
        """What the next tokens add. After `stopped` no more tokens are wanted."""
        text = self._stop.push(self._detokenizer.push(token_ids))
        return Piece(text, self._stop.stopped)

    def finish(self) -> Piece:
        """The rest, when the answer ended by itself or by its length. Empty after a stop sequence."""
        text = self._stop.push(self._detokenizer.finish())
        return Piece(text + self._stop.finish(), self._stop.stopped)
