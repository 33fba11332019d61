"""Agreement: closed answers by their words, open ones by a bar of the cloud's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quantize.agreement import clears, open_bar, same_answer
from quantize.errors import QuantizeError
from quantize.items import CalibrationItem, from_records, items_digest, read_items
from weir.demo import questions

RECORD = {
    "task": "city",
    "kind": "closed",
    "messages": [{"role": "user", "content": "Which city?"}],
    "max_tokens": 8,
    "stop": ["\n"],
}


@pytest.mark.parametrize(
    ("edge", "cloud", "expected"),
    [
        ("Paris", "paris.", True),
        (" The toaster", "toaster", True),
        ("48,213", "48213", True),
        ("office-chair", "office chair", True),
        ("\uff22ern", "Bern", True),
        ("Paris", "Lyon", False),
        ("2", "two", False),
        ("", "", False),
        ("...", "...", False),
        ("yes", "yes, please", False),
    ],
)
def test_closed_answers_agree_when_their_words_are_equal(edge: str, cloud: str, expected: bool) -> None:
    assert same_answer(edge, cloud) is expected


def test_open_answers_must_be_as_likely_as_the_middle_one_of_the_clouds_own() -> None:
    bar = open_bar([-3.0, -1.0, -2.0])
    assert bar == -2.0
    assert clears(-2.0, bar)
    assert not clears(-2.1, bar)
    assert not clears(None, bar)
    assert not clears(0.0, open_bar([]))


def test_items_are_read_from_records_and_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text(json.dumps(RECORD) + "\n\n")
    assert read_items(path) == from_records([RECORD])
    assert read_items(path)[0].stop == ("\n",)


@pytest.mark.parametrize(
    "change", [{"kind": "other"}, {"messages": []}, {"messages": [{"role": "user"}]}, {"max_tokens": 0}]
)
def test_an_item_that_is_wrong_is_named(change: dict[str, object]) -> None:
    with pytest.raises(QuantizeError, match="item 2 is wrong"):
        from_records([RECORD, {**RECORD, **change}])


@pytest.mark.parametrize("text", ["{", "\xff"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "items.jsonl"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(QuantizeError, match=r"items.jsonl"):
        read_items(path)


def test_the_demo_and_the_calibration_recognize_the_same_questions() -> None:
    """The demo promises by digest that what it asks was not fitted on, so both must make equal digests."""
    catalogue = questions.load()
    items = from_records(questions.as_records(catalogue.fitted))
    assert [item.digest for item in items] == [item.digest for item in catalogue.fitted]


def test_case_and_space_do_not_make_another_question() -> None:
    one, other = (CalibrationItem((("user", text),), "open", 4) for text in ("Where  is IT?", "where is it?\n"))
    assert one.digest == other.digest
    assert items_digest([one]) == items_digest([other])
