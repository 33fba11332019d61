"""Calibration from end to end on small real models: answers, labels, fit, a release that still verifies."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from quantize.calibrate import calibrate_release
from quantize.edge_answers import edge_answers
from quantize.errors import QuantizeError
from quantize.items import CalibrationItem
from quantize.reference import Reference
from release.folder import open_release
from release.manifest import CALIBRATION
from router.confidence import FEATURES
from runtime.ort.generate import generate
from runtime.ort.load import load_model
from runtime.tokenizer import Tokenizer

SYSTEM = "Where is my parcel? Answer with the city, the date and the number of nights."
ITEMS = tuple(
    CalibrationItem((("system", SYSTEM), ("user", f"Where is order {number}?")), "closed", 3, ("\n",), "order")
    for number in range(20)
) + tuple(
    CalibrationItem((("user", f"Please send {number} parcels back."),), "open", 6, (), "advice") for number in range(4)
)


@pytest.fixture
def release(tiny_release: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_release, tmp_path / "release")


def test_a_release_gets_its_calibrations(release: Path, tiny_hf_folder: Path) -> None:
    """The cloud is the release's own source, so that some answers agree and some do not."""
    before = open_release(release)
    manifest = calibrate_release(
        release, ITEMS, tiny_hf_folder, cloud_reference="source", edge_threads=1, cloud_threads=1, prefix_tokens=2
    )
    after = open_release(release)
    assert after.manifest == manifest
    assert after.id != before.id
    assert after.manifest.cloud.name == "source"
    assert after.weight_digest(8) == before.weight_digest(8)
    assert {(entry.precision, entry.commit_rule) for entry in manifest.calibrations} == {
        (bits, rule) for bits in (4, 8) for rule in ("end", "prefix:2")
    }
    agree = {entry.precision: entry.n_agree for entry in manifest.calibrations}
    assert agree[8] >= agree[4]
    assert agree[8] > 0
    assert all(entry.n == 24 and entry.features == FEATURES for entry in manifest.calibrations)
    figures = {(f.name, f.precision): f.value for f in manifest.quality}
    assert figures["agreement_with_cloud", 8] == agree[8] / 24
    assert ("relative_weight_error", 4) in figures
    content = json.loads((release / CALIBRATION).read_text())
    assert set(content["question_digests"]) == {item.digest for item in ITEMS}
    assert "parcel" not in json.dumps(content)
    again = calibrate_release(
        release, ITEMS, tiny_hf_folder, cloud_reference="source", edge_threads=1, cloud_threads=1, prefix_tokens=2
    )
    assert again == manifest


def test_a_calibration_that_fails_leaves_the_release_as_it_was(release: Path, tmp_path: Path) -> None:
    names, before = {path.name for path in release.iterdir()}, open_release(release).id
    with pytest.raises(QuantizeError, match="not a model folder"):
        calibrate_release(release, ITEMS[:2], tmp_path)
    with pytest.raises(QuantizeError, match="occurs twice"):
        calibrate_release(release, (ITEMS[0], ITEMS[0]), tmp_path)
    with pytest.raises(QuantizeError, match="give items"):
        calibrate_release(release, (), tmp_path)
    assert {path.name for path in release.iterdir()} == names
    assert open_release(release).id == before


def test_shared_beginnings_change_no_answer_and_no_signal(tiny_release: Path) -> None:
    release = open_release(tiny_release)
    answers = edge_answers(release, 8, ITEMS, prefix_tokens=2, threads=1, told=lambda: None)
    tokenizer = Tokenizer.load(release.path, release.manifest.eos_token_ids)
    model = load_model(release, 8, capacity=256).steps
    for item, answer in zip(ITEMS, answers, strict=True):
        ids = tokenizer.encode_chat(item.messages)
        choices = list(generate(model, ids, item.max_tokens, tokenizer.stop_ids))
        assert answer.signals.prompt_tokens == len(ids)
        assert 0 <= len(choices) - answer.signals.tokens < item.max_tokens  # a stop sequence may end it sooner
        if not item.stop:
            assert answer.text == tokenizer.decode([choice.token for choice in choices])
            assert answer.signals.sum_logprob == pytest.approx(sum(choice.logprob for choice in choices), abs=1e-4)
        assert answer.early.tokens == min(answer.signals.tokens, 2)


def test_the_reference_answers_in_batches_as_it_does_alone(tiny_hf_folder: Path) -> None:
    import torch

    reference = Reference(tiny_hf_folder, threads=1, eos_token_ids=(2,), dtype="float32")
    together = reference.answers(ITEMS, told=lambda: None)
    alone = [reference.answers([item], told=lambda: None)[0] for item in ITEMS[::5]]
    assert [answer.text for answer in together[::5]] == [answer.text for answer in alone]
    for one, other in zip(together[::5], alone, strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-3)
    opened = [item for item in ITEMS if item.kind == "open"]
    scores = reference.scores(opened, [answer.text for answer in together[-4:]], told=lambda: None)
    assert any(score is not None and score < 0 for score in scores)
    assert reference.scores(opened, [""] * 4, told=lambda: None) == [None] * 4
    sampled = [reference.answers(opened, told=lambda: None, seed=seed) for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]
    assert torch.get_num_threads() == 1
