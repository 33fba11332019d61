"""A built release computes what its source computes, at both precisions, for both families."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from quantize.build import build_release
from quantize.errors import OutOfSpace
from quantize.nest import Nested, RoundToNearest
from release.folder import Release, open_release
from release.manifest import Matrix
from release.planes import Floats, dequantize, unpack4, unpackz
from runtime.ort.load import load_model
from tests import releases

PROMPT = [5, 9, 33, 70, 101, 200, 45, 77, 12, 8, 300, 31]

Weights = Mapping[str, np.ndarray]


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def built(request: pytest.FixtureRequest) -> tuple[Path, Release]:
    """The source folder and its release: a Llama with a head of its own, a Qwen2 with biases and a tied one."""
    if request.param == "llama":
        return releases.tiny_hf(), open_release(releases.tiny())
    folder = releases.tiny_qwen2()
    return folder / "hf", open_release(folder / "release")


def edge_logits(release: Release, precision: int) -> np.ndarray:
    """[tokens, V], one position at a time after the first."""
    steps = load_model(release, precision, capacity=64).steps
    rows = [steps.prefill(0, PROMPT[:1], 0).copy()]
    rows += [steps.decode([token], [at])[0].copy() for at, token in enumerate(PROMPT[1:], 1)]
    return np.array(rows)


def source_logits(folder: Path, replaced: Weights | None = None) -> np.ndarray:
    """[tokens, V] of transformers in fp32, with some weights replaced."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    state = model.state_dict()
    for name, values in (replaced or {}).items():
        state[name].copy_(torch.from_numpy(np.ascontiguousarray(values)))
    with torch.inference_mode():
        logits: np.ndarray = model(torch.tensor([PROMPT])).logits[0].numpy()
    return logits


def matrix_values(matrix: Matrix, arrays: Weights, precision: int) -> np.ndarray:
    """A matrix's weights [N, K]; offsets are told from the weights that its inputs' block sums meet."""
    scales = arrays[f"{matrix.name}.s"]
    codes = arrays[f"{matrix.name}.q"].reshape(matrix.rows, scales.shape[1], -1)
    zeros = arrays[f"{matrix.name}.z"]
    if precision == 4:
        codes, zeros = unpack4(codes), unpackz(zeros, scales.shape[1])
    count = matrix.columns // matrix.block_size
    values = dequantize(codes, scales, zeros)
    further = values[:, count:].reshape(matrix.rows, -1)[:, :count, None]
    return (values[:, :count] + (further if further.size else 0)).reshape(matrix.rows, matrix.columns)


def composed_weights(release: Release, precision: int) -> dict[str, np.ndarray]:
    """The weights a session of that precision multiplies by, under the names transformers gives them."""
    arrays = release.initializers(precision)
    shape = release.manifest.architecture
    found: dict[str, np.ndarray] = {}
    for matrix in release.manifest.matrices:
        values = matrix_values(matrix, arrays, precision)
        owner = matrix.name.replace(".attn.", ".self_attn.")
        if owner.endswith("qkv_proj"):
            kv = shape.kv_heads * shape.head_dim
            parts = np.split(values, [shape.heads * shape.head_dim, shape.heads * shape.head_dim + kv])
            for letter, part in zip("qkv", parts, strict=True):
                found[f"{owner.replace('qkv_proj', f'{letter}_proj')}.weight"] = part
        else:
            found[f"{owner}.weight"] = values
    return found


def distance(made: np.ndarray, expected: np.ndarray) -> float:
    """Root mean square of the difference, against the spread of what was expected."""
    return float(np.sqrt(np.square(made - expected).mean() / expected.var()))


def test_eight_bits_stay_close_to_the_source(built: tuple[Path, Release]) -> None:
    folder, release = built
    assert distance(edge_logits(release, 8), source_logits(folder)) < 0.06


def test_four_bits_stay_in_sight_of_the_source(built: tuple[Path, Release]) -> None:
    folder, release = built
    assert distance(edge_logits(release, 4), source_logits(folder)) < 0.5


@pytest.mark.parametrize("precision", [4, 8])
def test_a_session_multiplies_by_the_weights_its_planes_say(built: tuple[Path, Release], precision: int) -> None:
    """What is left of the difference once transformers gets the same weights is the kernels' rounding."""
    folder, release = built
    expected = source_logits(folder, composed_weights(release, precision))
    assert distance(edge_logits(release, precision), expected) < 0.06


def test_a_manifest_says_what_was_built(built: tuple[Path, Release]) -> None:
    folder, release = built
    manifest, config = release.manifest, json.loads((folder / "config.json").read_text())
    assert manifest.architecture.layers == config["num_hidden_layers"]
    assert manifest.eos_token_ids == (2,)
    assert len(manifest.matrices) == 5 * 2 + (1 if manifest.matrices[-1].table != manifest.matrices[-1].name else 2)
    assert manifest.calibrations == ()
    assert manifest.recipe.method == "rtn"
    errors = {figure.precision: figure.value for figure in manifest.quality}
    assert errors[8] < errors[4] / 10 < 0.02
    assert {entry.name for entry in manifest.files} == {path.name for path in release.path.iterdir()} - {
        "manifest.json"
    }


def test_a_tied_embedding_lies_on_the_heads_bytes() -> None:
    release = open_release(releases.tiny_qwen2() / "release")
    for precision in (4, 8):
        arrays = release.initializers(precision)
        assert np.shares_memory(arrays["model.embed_tokens.q"], arrays["lm_head.q"])


class _FullDisk:
    """A nester that fails as a full disk does, after some matrices."""

    method = "full-disk"
    text_digest = ""

    def __init__(self) -> None:
        self.left = 3

    def nest(self, name: str, weight: Floats, block_size: int) -> Nested:
        self.left -= 1
        if not self.left:
            raise OSError(28, "No space left on device")
        return RoundToNearest().nest(name, weight, block_size)


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, tiny_hf_folder: Path) -> None:
    with pytest.raises(OutOfSpace, match="nothing was written"):
        build_release(tiny_hf_folder, tmp_path / "out", name="x", nester=_FullDisk(), export=releases.tiny_exported())
    assert list(tmp_path.iterdir()) == []


def test_a_release_may_be_replaced_and_steps_may_differ_by_block(tmp_path: Path, tiny_hf_folder: Path) -> None:
    """Searched scales clip weights, so that blocks choose their own residual step."""
    out = tmp_path / "out"
    export = releases.tiny_exported()
    first = build_release(tiny_hf_folder, out, name="x", nester=RoundToNearest(search=True), export=export)
    opened = open_release(out)
    assert {matrix.residual_step for matrix in first.matrices} == {0}
    assert distance(edge_logits(opened, 8), source_logits(tiny_hf_folder, composed_weights(opened, 8))) < 0.06
    second = build_release(tiny_hf_folder, out, name="x", version="1.0.1", replace=True, export=export)
    assert open_release(out).id == second.id != first.id
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
