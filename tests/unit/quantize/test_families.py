"""A release of each family computes what transformers computes for it, in prefill, in decoding and in a batch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from quantize.architecture import read_source
from quantize.build import build_release
from quantize.calibration_text import read_text
from quantize.compensate import Compensating
from quantize.progress import Silent
from release.folder import Release, open_release
from runtime.ort.load import load_model
from tests import releases
from tests.models import FAMILY_SETTINGS

# Longer than the windows of the layers that have one, shorter than a context that was cut to one.
PROMPT = [5, 9, 33, 70, 101, 200, 45, 77, 12, 8, 300, 31, 17, 250, 4, 99, 61, 120]
# Root mean square against the spread of the logits; rounding to 8 bits alone gives .02 to .06 on these models.
CLOSE, APART = 0.08, 0.2

built = pytest.mark.parametrize("family", FAMILY_SETTINGS)


def opened(family: str) -> tuple[Path, Release]:
    folder = releases.tiny_family(family)
    return folder / "hf", open_release(folder / "release")


def source_logits(folder: Path, prompt: list[int], **changes: object) -> np.ndarray:
    """[tokens, V] of transformers in fp32, with some of the config's entries changed."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.set_num_threads(1)
    config = AutoConfig.from_pretrained(folder)
    for name, value in changes.items():
        assert hasattr(config, name)
        setattr(config, name, value)
    model = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.inference_mode():
        logits: np.ndarray = model(torch.tensor([prompt])).logits[0].numpy()
    return logits


def distance(made: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(np.square(made - expected).mean() / expected.var()))


@built
def test_eight_bits_stay_close_to_the_source(family: str) -> None:
    folder, release = opened(family)
    expected = source_logits(folder, PROMPT)
    steps = load_model(release, 8, capacity=64).steps
    one_by_one = [steps.prefill(0, PROMPT[:1], 0).copy()]
    one_by_one += [steps.decode([token], [at])[0].copy() for at, token in enumerate(PROMPT[1:], 1)]
    assert distance(np.array(one_by_one), expected) < CLOSE
    assert distance(steps.prefill(0, PROMPT, 0), expected[-1]) < CLOSE
    steps.prefill(0, PROMPT[:10], 0)
    assert distance(steps.prefill(0, PROMPT[10:], 10), expected[-1]) < CLOSE


@built
def test_rows_of_different_lengths_do_not_touch_each_other(family: str) -> None:
    folder, release = opened(family)
    short, long = PROMPT[3:8], PROMPT
    steps = load_model(release, 8, slots=2, capacity=64).steps
    steps.prefill(0, short[:-1], 0)
    steps.prefill(1, long[:-1], 0)
    logits = steps.decode([short[-1], long[-1]], [len(short) - 1, len(long) - 1])
    assert distance(logits[0], source_logits(folder, short)[-1]) < CLOSE
    assert distance(logits[1], source_logits(folder, long)[-1]) < CLOSE


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("gemma2", {"sliding_window": 64}),
        ("gemma3", {"sliding_window": 64}),
        ("gemma2", {"attn_logit_softcapping": None}),
        ("gemma2", {"final_logit_softcapping": None}),
        ("gemma3", {"query_pre_attn_scalar": 256}),
        ("mistral", {"sliding_window": 6}),
        ("phi3", {"sliding_window": 6}),
    ],
)
def test_what_a_family_has_of_its_own_would_show_if_it_were_lost(family: str, change: dict[str, object]) -> None:
    """Without this the comparison above could pass for a graph that leaves windows and caps out."""
    folder, _ = opened(family)
    assert distance(source_logits(folder, PROMPT, **change), source_logits(folder, PROMPT)) > APART


@pytest.mark.parametrize("family", ["phi3", "gemma3"])
def test_errors_are_compensated_in_every_matrix(family: str, tmp_path: Path) -> None:
    """Phi-3 packs in its layers what the graph takes apart; Gemma 3 hands its layers masks of two kinds."""
    source = releases.tiny_family(family) / "hf"
    nester = Compensating(read_source(source), read_text(None), threads=1, progress=Silent())
    build_release(source, tmp_path / "out", name="tiny", nester=nester, export=releases.export_here)
    manifest = open_release(tmp_path / "out").manifest
    assert manifest.recipe.method == "gptq"
    assert all(matrix.residual_step == 0 for matrix in manifest.matrices if ".layers." in matrix.name)


def test_a_context_ends_where_full_attention_would_differ() -> None:
    lengths = {family: opened(family)[1].manifest.architecture.context_length for family in FAMILY_SETTINGS}
    assert (lengths["mistral"], lengths["phi3"], lengths["phi3-long"]) == (32, 32, 64)
    assert lengths["gemma2"] == lengths["gemma3"] == lengths["qwen3"] == 512


def test_rotary_tables_are_no_longer_than_the_context() -> None:
    for family in ("phi3-long", "gemma3"):
        folder, release = opened(family)
        tables = [tensor for tensor in release.manifest.tensors if tensor.name.startswith(("cos_", "sin_"))]
        assert {tensor.shape[0] for tensor in tables} == {release.manifest.architecture.context_length}
        assert len(tables) == (4 if family == "gemma3" else 2)
        assert json.loads((folder / "config.json").read_text())["max_position_embeddings"] == 512
