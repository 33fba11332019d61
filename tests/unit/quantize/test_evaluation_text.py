"""Windows cover what they should, drawn by seed; a text that weights were made on is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantize.calibration_text import read_text as calibration_text
from quantize.errors import QuantizeError
from quantize.evaluation_text import LENGTH, Window, demand_apart, read_text, windows
from runtime.tokenizer import Tokenizer
from weir.demo.questions import load as load_questions


def test_weirs_own_text_is_apart_from_its_calibration_text_and_from_the_demos_questions() -> None:
    demand_apart(read_text(), calibration_text())
    text = " ".join(read_text().lower().split())
    catalogue = load_questions()
    for item in (*catalogue.asked, *catalogue.fitted):
        assert " ".join(item.text.lower().split()) not in text


def test_windows_are_stretches_of_the_text_with_the_token_that_follows_each(tiny_hf_folder: Path) -> None:
    tokens = Tokenizer.load(tiny_hf_folder).encode(read_text())
    found = windows(read_text(), tiny_hf_folder, context=8192)
    assert len(found) * LENGTH == 4096
    joined = ",".join(map(str, tokens))
    for window in found:
        assert (len(window.inputs), len(window.targets)) == (LENGTH, LENGTH)
        assert window.inputs[1:] == window.targets[:-1]
        assert ",".join(map(str, window.inputs)) in joined
    assert len({tuple(window.inputs) for window in found}) == len(found)


def test_the_seed_draws_the_windows(tiny_hf_folder: Path) -> None:
    def drawn(seed: int) -> tuple[Window, ...]:
        return windows(read_text(), tiny_hf_folder, context=8192, least=1024, seed=seed)

    assert drawn(1) == drawn(1) != drawn(2)


def test_a_small_context_makes_short_windows(tiny_hf_folder: Path) -> None:
    found = windows(read_text(), tiny_hf_folder, context=100, least=250)
    assert [len(window.inputs) for window in found] == [100, 100, 100]


def test_a_text_that_is_too_short_says_how_much_is_needed(tiny_hf_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(QuantizeError, match="4097 are needed"):
        windows("A weir keeps the water back. " * 9, tiny_hf_folder, context=512)
    with pytest.raises(QuantizeError, match="cannot be read"):
        read_text(tmp_path / "none.txt")


def test_a_text_that_errors_were_compensated_on_is_refused() -> None:
    with pytest.raises(QuantizeError, match="is the calibration text"):
        demand_apart(calibration_text(), calibration_text())
    half = read_text()[: len(read_text()) // 2]
    with pytest.raises(QuantizeError, match=r"\d\d% of the evaluation text also stands"):
        demand_apart(read_text(), "Something else before it.\n" + half.upper())
    demand_apart(read_text(), "")
