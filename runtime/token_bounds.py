"""How much text one token can stand for: so that a text which cannot fit is refused before seconds go into encoding it.

Told only for tokenizers of which it is certain: byte-pair models that know every byte, whose normalizer takes nothing
away but by composing characters, and whose pre-tokenizer drops nothing. For any other kind nothing is told, and a text
is encoded to be counted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import tokenizers

# NFC makes one character of up to four code points, and fewer bytes by a factor below this.
_COMPOSED = 4
_KEEPING = frozenset(("ByteLevel", "Digits", "Metaspace"))

_Part = Mapping[str, Any]


def most_bytes(tokenizer: tokenizers.Tokenizer) -> int | None:
    """How many bytes of text a token stands for at most; None where a long text may have few tokens.

    Goes through the vocabulary, which takes some tens of milliseconds.
    """
    shrinks = _shrinks(_state(tokenizer.normalizer))
    if shrinks is None or tokenizer.truncation is not None or not _keeps(_state(tokenizer.pre_tokenizer)):
        return None
    # Added tokens that take the blanks around them stand for any number.
    added = tokenizer.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip for token in added):
        return None
    vocabulary = tokenizer.get_vocab()
    if not isinstance(tokenizer.model, tokenizers.models.BPE) or not _knows_every_byte(tokenizer, vocabulary):
        return None
    return shrinks * max(len(token.encode()) for token in vocabulary)


def _state(part: Any) -> _Part | None:
    state: _Part | None = None if part is None else json.loads(part.__getstate__())
    return state


def _shrinks(normalizer: _Part | None) -> int | None:
    """By what factor a text may become shorter; None: by any."""
    if normalizer is None:
        return 1
    parts = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
    factors = [_factor(part) if part["type"] != "Sequence" else _shrinks(part) for part in parts]
    return None if None in factors else math.prod(factor or 1 for factor in factors)


def _factor(normalizer: _Part) -> int | None:
    match normalizer["type"]:
        case "NFC":
            return _COMPOSED
        case "Prepend":
            return 1
        case "Replace":
            replaced = normalizer["pattern"].get("String")
            return 1 if replaced and len(normalizer["content"].encode()) >= len(replaced.encode()) else None
    return None


def _keeps(pre_tokenizer: _Part | None) -> bool:
    """Whether all of a text goes on."""
    if pre_tokenizer is None:
        return True
    kind = pre_tokenizer["type"]
    if kind == "Sequence":
        return all(_keeps(part) for part in pre_tokenizer["pretokenizers"])
    return kind in _KEEPING or (kind == "Split" and pre_tokenizer["behavior"] != "Removed")


def _knows_every_byte(tokenizer: tokenizers.Tokenizer, vocabulary: Mapping[str, int]) -> bool:
    if tokenizer.model.byte_fallback:
        return all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    return "ByteLevel" in str(_state(tokenizer.pre_tokenizer)) and all(letter in vocabulary for letter in alphabet)
