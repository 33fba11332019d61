"""Pairs of texts as one: which token is of which text, and what is cut of two that are too long together."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Raw
from tokenizers import models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from release.errors import ManifestError
from release.manifest import Labelling, Manifest
from runtime.ort.classify import TextEncoder
from runtime.tokenizer import Tokenizer, TooManyTokens
from tests.fakes.releases import write_release
from tests.models import write_tokenizer

WORDS = [f"w{number}" for number in range(50)]
CLS, SEP = 0, 1


def made(*, pairs: bool = True) -> Tokenizer:
    raw = Raw(
        models.WordLevel({"[CLS]": CLS, "[SEP]": SEP, "[UNK]": 2, **{w: 3 + i for i, w in enumerate(WORDS)}}, "[UNK]")
    )
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    if pairs:
        raw.post_processor = TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
        )
    return Tokenizer(raw.to_str().encode(), {})


TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=30).map(" ".join)


def test_a_pair_is_marked_as_the_tokenizer_does() -> None:
    tokenizer = made()
    ids, types = tokenizer.encode_pair("w0 w1", "w2", 10, cut=False)
    assert ids == [CLS, 3, 4, SEP, 5, SEP]
    assert types == [0, 0, 0, 0, 1, 1]
    assert tokenizer.takes_pairs and not made(pairs=False).takes_pairs


@settings(deadline=None)
@given(TEXTS, TEXTS, st.integers(5, 70))
def test_what_is_too_long_is_cut_from_the_longer_text_or_refused(text: str, pair: str, most: int) -> None:
    tokenizer, first, second = made(), len(text.split()), len(pair.split())
    if first + second + 3 > most:
        with pytest.raises(TooManyTokens):
            tokenizer.encode_pair(text, pair, most, cut=False)
    ids, types = tokenizer.encode_pair(text, pair, most, cut=True)
    assert len(ids) == len(types) == min(first + second + 3, most)
    kept, other = types.count(0) - 2, types.count(1) - 1
    assert ids[1 : 1 + kept] == [3 + WORDS.index(word) for word in text.split()[:kept]]
    assert ids[2 + kept : -1] == [3 + WORDS.index(word) for word in pair.split()[:other]]
    if first + second + 3 > most:  # the shorter one keeps all of itself, or half of the room
        room = most - 3
        assert min(first, second, room // 2) == (kept if first <= second else other)


def test_texts_are_cut_or_refused_as_the_release_says(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    before = write_release(tmp_path / "r", name="intents", task="classify")

    def encoder(**labelling: bool) -> TextEncoder:
        manifest: Manifest = _with(before, Labelling(**labelling))
        return TextEncoder(made(), manifest, 6)

    long = " ".join(WORDS[:9])
    with pytest.raises(TooManyTokens):
        encoder()(long)
    cut = encoder(truncates=True)(long)
    assert (len(cut), cut.ids[0], cut.ids[-1]) == (6, CLS, SEP)
    assert len(encoder()(long, cut=True)) == 6
    assert not encoder().takes_pairs
    assert encoder(text_pairs=True).takes_pairs
    assert encoder(text_pairs=True)("w0", "w1").types == [0, 0, 0, 1, 1]


def test_the_vocabulary_is_the_models_or_where_nobody_wrote_it_down_the_tokenizers(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    before = write_release(tmp_path / "r", name="intents", task="classify")
    told, untold = (replace(before, architecture=replace(before.architecture, vocabulary=n)) for n in (70, 0))
    assert TextEncoder(made(), told, 6).vocabulary == 70
    assert TextEncoder(made(), untold, 6).vocabulary == 3 + len(WORDS)
    raw = Raw(models.WordLevel({"[UNK]": 2, "w0": 9}, "[UNK]"))
    assert Tokenizer(raw.to_str().encode(), {}).id_count == 10  # ids were left out


def _with(manifest: Manifest, labelling: Labelling) -> Manifest:
    import dataclasses

    return dataclasses.replace(manifest, labelling=labelling)


def test_a_manifest_from_before_reads_as_one_label_that_cuts_nothing(tmp_path: Path) -> None:
    from release.manifest import document, read, release_id

    manifest = write_release(tmp_path / "r", name="intents", task="classify")
    content = document(manifest)
    del content["labelling"]
    assert read(json.dumps({"id": release_id(content), **content})).labelling == Labelling()
    content["labelling"] = {"thresholds": [0.5]}
    with pytest.raises(ManifestError, match="do not exclude each other"):
        read(json.dumps({"id": release_id(content), **content}))
