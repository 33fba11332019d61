"""Release folders: verified byte for byte, composed, and digested by what a session really uses."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from release.errors import CorruptRelease, ManifestError, ReleaseError
from release.folder import Release, describe_file, open_release, verify_file
from release.listing import list_releases
from release.manifest import PLANE_LO, graph_name, read


@pytest.fixture
def release(tiny_release: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return shutil.copytree(tiny_release, tmp_path / "release")


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_a_sound_release_opens(release: Path) -> None:
    opened = open_release(release)
    assert opened.precisions == (4, 8)
    assert opened.id == read((release / "manifest.json").read_text()).id


@pytest.mark.parametrize("name", ["base.bin", "plane.hi.bin", "plane.lo.bin", "graph.8.onnx", "tokenizer.json"])
def test_a_flipped_bit_is_found_and_placed(release: Path, name: str) -> None:
    flip(release / name, 100)
    with pytest.raises(CorruptRelease, match=f"{name} is damaged between bytes 0 and"):
        open_release(release)


def test_a_flipped_bit_is_found_in_a_later_chunk(tmp_path: Path) -> None:
    path = tmp_path / "some.bin"
    path.write_bytes(bytes(range(250)) * 10)
    entry = describe_file(path, chunk_bytes=1000)
    verify_file(path, entry)
    flip(path, 2100)
    with pytest.raises(CorruptRelease, match="between bytes 2000 and 2500"):
        verify_file(path, entry)


@pytest.mark.parametrize(("change", "told"), [(-1, "truncated"), (1, "too long")])
def test_a_file_of_another_size_is_found(release: Path, change: int, told: str) -> None:
    path = release / "base.bin"
    content = path.read_bytes()
    path.write_bytes(content[:change] if change < 0 else content + b"\0" * change)
    with pytest.raises(CorruptRelease, match=told):
        open_release(release)


def test_a_missing_file_is_found(release: Path) -> None:
    (release / "base.bin").unlink()
    with pytest.raises(CorruptRelease, match=r"base.bin is missing"):
        open_release(release)


def test_an_altered_manifest_is_found(release: Path) -> None:
    path = release / "manifest.json"
    path.write_text(path.read_text().replace('"block_size": 32', '"block_size": 64'))
    with pytest.raises(ManifestError, match="altered"):
        open_release(release)


def test_a_node_may_hold_four_bits_alone(release: Path) -> None:
    (release / PLANE_LO).unlink()
    (release / graph_name(8)).unlink()
    opened = open_release(release)
    assert opened.precisions == (4,)
    assert opened.initializers(4)
    with pytest.raises(ReleaseError, match="no 8-bit weights here"):
        opened.graph(8)


def test_the_files_of_a_precision_are_those_the_release_lists(release: Path) -> None:
    manifest = open_release(release, verify=False).manifest
    assert manifest.weight_files(4) == (graph_name(4), "base.bin", "plane.hi.bin")
    assert manifest.weight_files(8) == (graph_name(8), "base.bin", "plane.hi.bin", PLANE_LO)
    kept = tuple(entry for entry in manifest.files if not entry.name.startswith(("plane.", "graph.4")))
    alone = dataclasses.replace(manifest, files=kept, tensors=(), matrices=(), precisions=(8,))
    assert alone.weight_files(8) == (graph_name(8), "base.bin")
    (release / PLANE_LO).unlink()
    assert Release(release, alone).precisions == (8,)


def test_eight_bits_are_the_four_bits_and_their_residual(release: Path) -> None:
    opened = open_release(release)
    four, eight = opened.initializers(4), opened.initializers(8)
    assert four.keys() == eight.keys()
    for matrix in opened.manifest.matrices:
        codes = eight[f"{matrix.name}.q"]
        if matrix.table == matrix.name:
            assert codes.shape == (matrix.rows, matrix.columns)
        else:
            assert codes.shape == (matrix.rows, matrix.columns // 32, 32)
        packed = four[f"{matrix.name}.q"]
        assert (codes[..., 0::2] >> 4 == packed & 15).all()
        assert (codes[..., 1::2] >> 4 == packed >> 4).all()
        np.testing.assert_allclose(eight[f"{matrix.name}.s"] * 16, four[f"{matrix.name}.s"], rtol=1e-6)
    assert all(array.dtype != np.float16 for array in (*four.values(), *eight.values()))


def test_the_weight_digest_is_of_the_weights_in_use(release: Path) -> None:
    before = open_release(release)
    assert before.weight_digest(4) != before.weight_digest(8)
    assert before.weight_digest(8) == open_release(release).weight_digest(8)
    flip(release / PLANE_LO, 0)
    after = open_release(release, verify=False)
    assert after.weight_digest(4) == before.weight_digest(4)
    assert after.weight_digest(8) != before.weight_digest(8)


def test_listing_names_what_is_broken_and_passes_over_what_is_being_built(release: Path) -> None:
    root = release.parent
    shutil.copytree(release, root / ".unfinished")
    shutil.copytree(release, root / "broken")
    (root / "broken" / "manifest.json").write_text("{}")
    (root / "notes").mkdir()
    listing = list_releases(root)
    assert [found.path for found in listing.found] == [release]
    assert list(listing.broken) == [str(root / "broken")]
    assert list_releases(release).found == listing.found
    with pytest.raises(ReleaseError, match="not a folder"):
        list_releases(root / "nowhere")
