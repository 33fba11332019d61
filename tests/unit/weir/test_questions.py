"""The demo's questions and the items its calibrator is fitted on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weir.demo.questions import Catalogue, as_records, load


def test_nothing_that_is_asked_is_fitted_on() -> None:
    catalogue = load()
    catalogue.apart()
    assert len(catalogue.asked) >= 24
    assert len(catalogue.fitted) >= 120
    texts = {item.text.lower() for item in catalogue.fitted}
    assert not any(item.text.lower() in texts for item in catalogue.asked)


def test_examples_inside_the_prompts_are_not_asked_either() -> None:
    catalogue = load()
    shown = {turn["content"] for item in catalogue.asked for turn in item.messages[:-1]}
    assert not shown & {item.text for item in (*catalogue.asked, *catalogue.fitted)}


def test_a_question_that_is_fitted_on_is_found_by_its_hash() -> None:
    catalogue = load()
    first = catalogue.asked[0]
    loud = replace(first, messages=(*first.messages[:-1], {"role": "user", "content": f" {first.text.upper()} "}))
    with pytest.raises(ValueError, match="1 of the demo's questions"):
        Catalogue(catalogue.asked, (*catalogue.fitted, loud)).apart()
    with pytest.raises(ValueError, match="appear twice"):
        Catalogue((*catalogue.asked, loud), catalogue.fitted).apart()


def test_equal_seeds_give_equal_items_and_other_seeds_others() -> None:
    assert load(1).fitted == load(1).fitted
    assert load(1).fitted != load(2).fitted


def test_both_sides_have_the_same_tasks() -> None:
    catalogue = load()
    assert {item.task for item in catalogue.asked} == {item.task for item in catalogue.fitted}
    assert {item.kind for item in catalogue.fitted} == {"closed", "open"}
    assert all(item.max_tokens <= 40 and item.stop for item in (*catalogue.asked, *catalogue.fitted))


def test_records_carry_what_a_calibration_needs() -> None:
    record = as_records(load().fitted)[0]
    assert set(record) == {"task", "kind", "messages", "max_tokens", "stop"}
