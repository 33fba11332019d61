"""What each token of a tokenizer spells, as bytes: for log-probs, and for grammars over bytes.

Two kinds of tokenizers have such bytes: byte-level ones, which write every byte as a character of its
own (GPT-2's table), and those with a byte fallback, which write a space as ▁ and other bytes as
<0xNN>. For any other kind nothing is invented.

Must not know: templates, models, grammars.
"""

from __future__ import annotations

import json
import re
from typing import Any

import tokenizers

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


class Spelling:
    """The bytes of every token of one tokenizer. Thread-safe."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, byte_level: bool) -> None:
        self._tokenizer = tokenizer
        self._byte_level = byte_level
        added = tokenizer.get_added_tokens_decoder()
        self._added: dict[int, bytes] = {token_id: token.content.encode() for token_id, token in added.items()}
        self.special_ids: frozenset[int] = frozenset(token_id for token_id, token in added.items() if token.special)
        self.size: int = tokenizer.get_vocab_size(with_added_tokens=True)

    def spell(self, token_id: int) -> bytes:
        """A token's bytes; empty for an id that is no token's."""
        if token_id in self._added:
            return self._added[token_id]
        text = self._tokenizer.id_to_token(token_id)
        if text is None:
            return b""
        if not self._byte_level:
            byte = _BYTE.fullmatch(text)
            return bytes((int(byte[1], 16),)) if byte else text.replace(_SPACE, " ").encode()
        try:
            return bytes(_BYTES_OF[character] for character in text)
        except KeyError:  # not made of the table's characters: taken as it is written
            return text.encode()

    def encode(self, text: str) -> list[int]:
        """Token ids of a text as it stands, without anything around it."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def spelling_of(tokenizer: tokenizers.Tokenizer) -> Spelling | None:
    """How the tokens of `tokenizer` are spelled; None for a kind that is not known."""
    kinds = _kinds(tokenizer.decoder)
    if "ByteLevel" in kinds:
        return Spelling(tokenizer, byte_level=True)
    return Spelling(tokenizer, byte_level=False) if "ByteFallback" in kinds else None


def _kinds(decoder: Any) -> set[str]:
    if decoder is None:
        return set()
    waiting, kinds = [json.loads(decoder.__getstate__())], set()
    while waiting:
        part = waiting.pop()
        kinds.add(part.get("type", ""))
        waiting.extend(part.get("decoders", ()))
    return kinds


def _table() -> dict[str, int]:
    """GPT-2's: printable bytes are their own characters, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTES_OF = _table()
