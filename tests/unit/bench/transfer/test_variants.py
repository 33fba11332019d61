"""The releases that nested ones are compared with are releases: they verify, and hold the same weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.transfer.variants import eight_only, four_only
from release.folder import open_release
from release.manifest import BASE, PLANE_LO, graph_name


def test_a_four_bit_release_is_the_nested_one_without_its_residual(tiny_release: Path, tmp_path: Path) -> None:
    manifest = four_only(tiny_release, tmp_path / "four", "2.0.0")
    made, nested = open_release(tmp_path / "four"), open_release(tiny_release)
    assert (made.precisions, manifest.version) == ((4,), "2.0.0")
    assert not {PLANE_LO, graph_name(8)} & {entry.name for entry in manifest.files}
    assert made.weight_digest(4) == nested.weight_digest(4)
    names = {entry.name: entry.sha256 for entry in nested.manifest.files}
    assert all(names[entry.name] == entry.sha256 for entry in manifest.files)  # so that a store shares them


def test_an_eight_bit_release_holds_the_composed_weights_whole(tiny_release: Path, tmp_path: Path) -> None:
    manifest = eight_only(tiny_release, tmp_path / "eight", "2.0.0")
    made, nested = open_release(tmp_path / "eight"), open_release(tiny_release)
    assert made.precisions == (8,)
    assert manifest.matrices == ()
    assert {entry.name for entry in manifest.files if entry.name.endswith(".bin")} == {BASE}
    whole, composed = made.initializers(8), nested.initializers(8)
    assert whole.keys() == composed.keys()
    for name, array in composed.items():
        assert (whole[name].dtype, whole[name].shape) == (array.dtype, array.shape)
        np.testing.assert_allclose(whole[name], array, rtol=1e-3)
        if not name.endswith(".s"):
            np.testing.assert_array_equal(whole[name], array)
    sizes = {entry.name: entry.bytes for entry in nested.manifest.files}
    weights = sum(sizes[name] for name in nested.manifest.weight_files(8)) - sizes[graph_name(8)]
    assert 0.9 < manifest.file(BASE).bytes / weights < 1.1
