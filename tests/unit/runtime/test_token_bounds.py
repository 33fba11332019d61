"""How much text a token can stand for, and that texts which cannot fit are not encoded."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

from runtime.token_bounds import most_bytes
from runtime.tokenizer import Tokenizer, TooManyTokens

_LETTERS = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def byte_level(**changes: object) -> tokenizers.Tokenizer:
    """Every byte, and one merge of two letters; with parts of it changed."""
    made = tokenizers.Tokenizer(models.BPE({**_LETTERS, "ab": 256}, [("a", "b")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for name, part in changes.items():
        setattr(made, name, part)
    return made


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=60))
def test_no_text_has_fewer_tokens_than_is_told(text: str) -> None:
    for made in (byte_level(), byte_level(normalizer=normalizers.NFC())):
        most = most_bytes(made)
        assert most is not None
        assert len(made.encode(text).ids) * most >= len(text.encode())


def test_composing_is_counted_with() -> None:
    plain, composed = most_bytes(byte_level()), most_bytes(byte_level(normalizer=normalizers.NFC()))
    assert plain is not None
    assert composed == 4 * plain


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": normalizers.Strip()},
        {"normalizer": normalizers.NFKC()},
        {"normalizer": normalizers.Replace(Regex("a+"), "a")},
        {"normalizer": normalizers.Sequence([normalizers.NFC(), normalizers.Replace("aa", "a")])},
        {"pre_tokenizer": pre_tokenizers.Split(" ", "removed")},
        {"pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel()])},
        {"model": models.WordLevel({"a": 0}, unk_token="a")},
        {"model": models.BPE({"a": 0, "b": 1}, [], unk_token="a", fuse_unk=True)},
    ],
)
def test_where_much_text_may_have_few_tokens_nothing_is_told(changes: dict[str, object]) -> None:
    assert most_bytes(byte_level(**changes)) is None


def test_a_token_that_takes_the_blanks_around_it_tells_nothing() -> None:
    made = byte_level()
    made.add_special_tokens([AddedToken("<end>", rstrip=True)])
    assert most_bytes(made) is None


def test_a_cut_text_tells_nothing() -> None:
    made = byte_level()
    made.enable_truncation(4)
    assert most_bytes(made) is None


def test_fallback_to_bytes_knows_them_all() -> None:
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
    assert most_bytes(byte_level(model=models.BPE(vocabulary, [], byte_fallback=True))) == 6
    del vocabulary["<0x07>"]
    assert most_bytes(byte_level(model=models.BPE(vocabulary, [], byte_fallback=True))) is None


def test_a_text_that_cannot_fit_is_refused_without_encoding_it(
    tiny_release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer.load(tiny_release)
    encoded: list[int] = []

    class Watched:
        def __init__(self, real: tokenizers.Tokenizer) -> None:
            self._real = real

        def __getattr__(self, name: str) -> object:
            if name == "encode_batch_fast":
                encoded.append(1)
            return getattr(self._real, name)

    monkeypatch.setattr(tokenizer, "_tokenizer", Watched(tokenizer._tokenizer))
    with pytest.raises(TooManyTokens, match="at least"):
        tokenizer.encode("word " * 200_000, most=100)
    assert encoded == []
    with pytest.raises(TooManyTokens) as refused:
        tokenizer.encode("word " * 200, most=100)
    assert "at least" not in str(refused.value)
    assert tokenizer.encode("word " * 20, most=100)
