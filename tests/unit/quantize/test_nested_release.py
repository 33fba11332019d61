"""What a release hands a session is what was nested: composed 8-bit weights, offsets, tied tables."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from quantize.architecture import SourceModel
from quantize.build import build_release
from quantize.export import GRAPH
from quantize.nest import Nested, RoundToNearest
from release.folder import Release, open_release
from release.planes import Floats, compose
from runtime.ort.session import OrtSession
from tests import releases
from tests.unit.quantize.test_build import composed_weights, distance, edge_logits, source_logits

PROMPT = [5, 9, 33, 70, 101, 200, 45, 77]


class WithOffsets:
    """Rounds to nearest with search and then shifts every block by an offset of its own."""

    method, text_digest = "shifted", ""

    def __init__(self) -> None:
        self.made: dict[str, Nested] = {}

    def nest(self, name: str, weight: Floats, block_size: int) -> Nested:
        made = RoundToNearest(search=True).nest(name, weight, block_size)
        if "layers" in name:
            scales = made.four.scales
            offsets = np.random.default_rng(len(name)).integers(0, 16, scales.shape).astype(np.uint8)
            groups = np.array_split(scales, range(block_size, scales.shape[1], block_size), axis=1)
            units = np.stack([group.max(1) / 15 for group in groups], axis=1).astype(np.float16).astype(np.float32)
            made = Nested(made.four, made.rest, made.steps, offsets, units)
        self.made[name] = made
        return made


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def shifted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Release, WithOffsets]:
    """A source, its release with offsets, and what was nested; the Qwen2's embedding is tied, the Llama's not."""
    rounded = releases.tiny() if request.param == "llama" else releases.tiny_qwen2() / "release"
    kept, nester = rounded.parent, WithOffsets()

    def export(source: SourceModel, work: Path, *, threads: int) -> Path:
        return shutil.copytree(kept / "exported", work / "exported") / GRAPH

    out = tmp_path_factory.mktemp(request.param) / "release"
    build_release(kept / "hf", out, name="shifted", nester=nester, export=export)
    return kept / "hf", open_release(out), nester


@pytest.mark.parametrize("precision", [4, 8])
def test_a_session_multiplies_by_the_weights_that_were_nested(
    shifted: tuple[Path, Release, WithOffsets], precision: int
) -> None:
    folder, release, nester = shifted
    weights = composed_weights(release, precision)
    for name, made in nester.made.items():
        owner = name.replace(".attn.", ".self_attn.")
        if precision == 4 and f"{owner}.weight" in weights:
            expected = made.at_four_bits()
            found = weights[f"{owner}.weight"].reshape(expected.shape)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    expected = source_logits(folder, weights)
    assert distance(edge_logits(release, precision), expected) < 0.06


def test_every_composed_weight_is_bit_for_bit_the_one_that_was_nested(
    shifted: tuple[Path, Release, WithOffsets],
) -> None:
    _, release, nester = shifted
    arrays = release.initializers(8)
    assert nester.made.keys() == {matrix.name for matrix in release.manifest.matrices}
    for name, made in nester.made.items():
        codes, scales, zeros = compose(made.four.codes, made.rest, made.four.scales, made.four.zeros, made.steps)
        assert np.array_equal(arrays[f"{name}.q"].reshape(codes.shape), codes)
        assert np.array_equal(arrays[f"{name}.s"], scales)
        assert np.array_equal(arrays[f"{name}.z"], zeros)


def test_a_directly_written_eight_bit_graph_gives_the_same_logits(
    shifted: tuple[Path, Release, WithOffsets],
) -> None:
    _, release, nester = shifted
    composed = release.initializers(8)
    written = {name: array.copy() for name, array in composed.items()}
    for name, made in nester.made.items():
        parts = compose(made.four.codes, made.rest, made.four.scales, made.four.zeros, made.steps)
        for part, values in zip("qsz", parts, strict=True):
            written[f"{name}.{part}"] = values.reshape(composed[f"{name}.{part}"].shape)
    first, second = (_logits(release, arrays) for arrays in (composed, written))
    assert np.array_equal(first, second)


def test_offsets_cost_what_they_should(shifted: tuple[Path, Release, WithOffsets]) -> None:
    _, release, _ = shifted
    with_offsets = [matrix for matrix in release.manifest.matrices if matrix.offsets]
    assert with_offsets
    sizes = {tensor.name: tensor.bytes for tensor in release.manifest.tensors}
    for matrix in with_offsets:
        count = matrix.columns // matrix.block_size
        assert sizes[f"{matrix.name}.f"] == matrix.rows * -(-count // 2)
        assert sizes[f"{matrix.name}.u"] == matrix.rows * 2 * -(-count // matrix.block_size)
    assert not any(name.startswith("block_sums") for name in release.initializers(8))


def _logits(release: Release, arrays: dict[str, np.ndarray]) -> np.ndarray:
    session = OrtSession(release.graph(8), arrays, 1).run
    shape, length = release.manifest.architecture, len(PROMPT)
    given = {
        "input_ids": np.array([PROMPT], np.int64),
        "seqlens_k": np.array([length - 1], np.int32),
        "total_seq": np.array(length, np.int32),
        "logits_idx": np.arange(length, dtype=np.int64)[None, :, None],
    }
    for layer in range(shape.layers):
        for kind in ("key", "value"):
            empty = np.zeros((1, shape.kv_heads, length, shape.head_dim), np.float32)
            given[f"past_key_values.{layer}.{kind}"] = empty
    logits: np.ndarray = session.run(["logits"], given)[0]
    return logits
