"""Releases with compensated errors: both families, right matrices, both precisions."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantize.architecture import SourceModel, read_source
from quantize.build import build_release
from quantize.calibration_text import read_text, sequences, text_digest
from quantize.compensate import Compensating
from quantize.errors import QuantizeError
from quantize.export import GRAPH
from quantize.progress import Silent
from release.folder import Release, open_release
from runtime.tokenizer import Tokenizer
from tests import releases
from tests.unit.quantize.test_build import composed_weights, distance, edge_logits, source_logits
from weir.demo.questions import load as load_questions


class Notes(Silent):
    """Keeps what a user would be told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def note(self, text: str) -> None:
        self.told.append(text)


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Release, Release]:
    """A source, its release rounded to nearest and the same with compensated errors."""
    rounded = releases.tiny() if request.param == "llama" else releases.tiny_qwen2() / "release"
    kept = rounded.parent

    def export(source: SourceModel, work: Path, *, threads: int) -> Path:
        return shutil.copytree(kept / "exported", work / "exported") / GRAPH

    out = tmp_path_factory.mktemp(request.param) / "release"
    notes = Notes()
    nester = Compensating(read_source(kept / "hf"), read_text(), threads=1, progress=notes)
    build_release(kept / "hf", out, name="compensated", nester=nester, export=export)
    assert len(notes.told) == 1, "every matrix had inputs"
    return kept / "hf", open_release(rounded), open_release(out)


TEXT = "On Friday the ferry to the island is full, so book early and bring the ticket with you. " * 8


def model_of(folder: Path, weights: Mapping[str, np.ndarray] | None = None) -> Any:
    """The source, with some weights replaced."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    state = model.state_dict()
    for name, values in (weights or {}).items():
        state[name].copy_(torch.from_numpy(np.ascontiguousarray(values)))
    return model


def logits(folder: Path, weights: Mapping[str, np.ndarray] | None = None) -> np.ndarray:
    """[tokens, V] of a text that nothing was compensated on."""
    import torch

    tokens = Tokenizer.load(folder).encode(TEXT)[:200]
    with torch.inference_mode():
        found: np.ndarray = model_of(folder, weights)(torch.tensor([tokens])).logits[0].numpy()
    return found


def layer_error(weights: Mapping[str, np.ndarray], folder: Path) -> float:
    """How far the first layer's own products move, for inputs of a text that was not compensated on."""
    import torch

    model = model_of(folder)
    tokens = Tokenizer.load(folder).encode(TEXT)[:200]
    seen: dict[str, torch.Tensor] = {}
    for name, module in model.model.layers[0].named_modules(prefix="model.layers.0"):
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda m, given, _, name=name: seen.__setitem__(name, given[0][0]))
    with torch.inference_mode():
        model(torch.tensor([tokens]))
        moved, whole = 0.0, 0.0
        for name, inputs in seen.items():
            weight = model.get_submodule(name).weight
            made = torch.from_numpy(np.ascontiguousarray(weights[f"{name}.weight"]))
            moved += float((inputs @ (made - weight).T).square().sum())
            whole += float((inputs @ weight.T).square().sum())
    return moved / whole


def test_four_bits_move_a_layers_outputs_less_than_rounding(pair: tuple[Path, Release, Release]) -> None:
    folder, rounded, compensated = pair
    error = {name: layer_error(composed_weights(release, 4), folder) for name, release in _named(rounded, compensated)}
    assert error["compensated"] < 0.8 * error["rounded"]


def test_eight_bits_stay_close_to_rounded_eight_bits(pair: tuple[Path, Release, Release]) -> None:
    folder, rounded, compensated = pair
    error = {name: layer_error(composed_weights(release, 8), folder) for name, release in _named(rounded, compensated)}
    assert error["compensated"] < 4 * error["rounded"] < 0.001


def test_the_whole_graph_comes_closer_to_the_source(pair: tuple[Path, Release, Release]) -> None:
    """Were q, k and v or two layers mixed up, it would be far away."""
    folder, rounded, compensated = pair
    expected = logits(folder)
    four = {name: distance(logits(folder, composed_weights(release, 4)), expected)
            for name, release in _named(rounded, compensated)}  # fmt: skip
    assert four["compensated"] < 0.9 * four["rounded"]
    assert distance(edge_logits(compensated, 8), source_logits(folder)) < 0.06


@pytest.mark.parametrize("precision", [4, 8])
def test_a_session_multiplies_by_the_weights_its_planes_say(
    pair: tuple[Path, Release, Release], precision: int
) -> None:
    folder, _, release = pair
    assert {matrix.residual_step for matrix in release.manifest.matrices} == {0}
    expected = source_logits(folder, composed_weights(release, precision))
    assert distance(edge_logits(release, precision), expected) < 0.06


def test_the_recipe_names_method_and_text(pair: tuple[Path, Release, Release]) -> None:
    _, rounded, compensated = pair
    assert compensated.manifest.recipe.method == "gptq"
    assert compensated.manifest.recipe.text_digest == text_digest(read_text())
    assert rounded.manifest.recipe.text_digest == ""


def test_a_matrix_without_inputs_is_rounded_visibly(tiny_hf_folder: Path) -> None:
    notes = Notes()
    nester = Compensating(read_source(tiny_hf_folder), read_text(), threads=1, progress=notes)
    weight = np.ones((4, 64), np.float32)
    for name in ("model.extra", "model.layers.1.mlp.down_proj", "model.layers.0.mlp.down_proj", "model.layers.9.x"):
        assert nester.nest(name, weight, 32).four.codes.shape == (4, 2, 32)
        assert any(name in told for told in notes.told)
        assert name in nester.method
    assert nester.method.startswith("gptq; rtn-search: model.extra")


def test_a_text_may_be_given_and_must_be_long_enough(tiny_hf_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_text("user: How are you?\nassistant: Well.\n----\nA plain passage.\n")
    tokenizer = Tokenizer.load(tiny_hf_folder)
    first, *_ = sequences(read_text(path), tiny_hf_folder, 20)
    assert first == tokenizer.encode_chat([("user", "How are you?")])[:20]
    with pytest.raises(QuantizeError, match="at least 256"):
        Compensating(read_source(tiny_hf_folder), read_text(path), threads=1, progress=Silent())
    with pytest.raises(QuantizeError, match="cannot be read"):
        read_text(tmp_path / "none.txt")


def test_weirs_own_text_holds_no_question_of_the_demo() -> None:
    text = " ".join(read_text().lower().split())
    catalogue = load_questions()
    for item in (*catalogue.asked, *catalogue.fitted):
        assert " ".join(item.text.lower().split()) not in text


def _named(rounded: Release, compensated: Release) -> tuple[tuple[str, Release], tuple[str, Release]]:
    return ("rounded", rounded), ("compensated", compensated)
