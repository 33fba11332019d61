"""What tokens spell: byte-level and byte-fallback tokenizers, and kinds whose tokens have no bytes."""

from __future__ import annotations

import json

import tokenizers
from tokenizers import decoders, models

from runtime.tokenizer import Tokenizer
from tests.unit.runtime.test_tokenizer import byte_tokenizer

SPACE = "\u2581"


def tokens_of(decoder: object, words: list[str]) -> Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab={word: n for n, word in enumerate(words)}, merges=[]))
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.add_tokens(["<tool_call>"])
    return Tokenizer(str(tokenizer.to_str()).encode(), {"eos_token": "</s>"})


def test_byte_level_tokens_spell_every_byte() -> None:
    tokenizer = Tokenizer(byte_tokenizer(), {})
    spelled = [tokenizer.token_bytes(token) for token in range(256)]
    assert sorted(spelled) == [bytes((n,)) for n in range(256)]
    ids = tokenizer.encode("Grüß 😀\n", special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, ids)) == "Grüß 😀\n".encode()
    assert tokenizer.token_bytes(256) == b"<|im_start|>"
    assert tokenizer.token_bytes(99_999) == b""


def test_fallback_tokens_spell_bytes_and_spaces() -> None:
    sequence = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = tokens_of(sequence, [f"{SPACE}hello", "<0xE2>", "ü"])
    assert [tokenizer.token_bytes(n) for n in range(5)] == [b" hello", b"\xe2", "ü".encode(), b"</s>", b"<tool_call>"]


def test_other_kinds_have_none_and_say_so() -> None:
    tokenizer = tokens_of(decoders.WordPiece(), ["hello", "##s"])
    assert tokenizer.spelling is None
    assert tokenizer.token_bytes(0) == b"hello"


def test_the_spelling_is_lent_with_the_tokenizer() -> None:
    known = Tokenizer(byte_tokenizer(), {})
    assert Tokenizer(byte_tokenizer(), {}, known=known).spelling is known.spelling
    assert json.loads(byte_tokenizer())["decoder"]["type"] == "ByteLevel"
