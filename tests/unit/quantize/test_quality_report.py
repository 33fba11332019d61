"""The report carries the figures and its pictures, and an earlier one gives way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quantize.evaluation import Evaluation, Level, Width
from quantize.nest import RoundToNearest
from quantize.quality_report import REPORT, report_folder, write_report
from quantize.weight_errors import Watched, by_layer
from release.folder import open_release

PNG = b"\x89PNG\r\n\x1a\n"


def evaluation() -> Evaluation:
    generator = np.random.default_rng(3)
    level = Level(0.12, 0.11, 0.21, 1024)

    def width(kl: float, top1: float) -> Width:
        values = generator.lognormal(np.log(kl), 1, 4096).astype(np.float32)
        return Width(kl, top1, level, values, perplexity=21.5)

    return Evaluation({4: width(0.1234, 0.81), 8: width(0.0042, 0.965)}, 4096, 0, "d" * 64, "x86-avx2", 20.25)


def watched() -> Watched:
    nester, generator = Watched(RoundToNearest()), np.random.default_rng(4)
    for name in ("model.layers.0.attn.o_proj", "model.layers.0.mlp.up_proj", "model.layers.1.attn.o_proj", "other"):
        nester.nest(name, generator.normal(size=(8, 64)).astype(np.float32), 32)
    return nester


def test_a_report_carries_every_figure_and_picture(tiny_release: Path, tmp_path: Path) -> None:
    folder = report_folder(tmp_path / "release")
    manifest = open_release(tiny_release).manifest
    path = write_report(folder, manifest, evaluation(), watched().errors)
    text = path.read_text()
    for figure in (manifest.id, "0.12340", "0.8100", "0.00420", "0.9650", "20.2500", "21.5", "d" * 64, "21.00%"):
        assert figure in text
    assert "**Note:** at 4 bits" in text
    assert "Not published" not in text
    pictures = {entry.name for entry in folder.iterdir()} - {REPORT}
    assert pictures == {"kl.png", "top1.png", "weight-error.png", "sizes.png"}
    assert all(f"({name})" in text and (folder / name).read_bytes().startswith(PNG) for name in pictures)
    assert {entry.name for entry in tmp_path.iterdir()} == {"release.quality"}


def test_a_refused_release_says_so_and_a_later_report_takes_its_place(tiny_release: Path, tmp_path: Path) -> None:
    folder, manifest = report_folder(tmp_path / "release"), open_release(tiny_release).manifest
    text = write_report(folder, manifest, evaluation(), refused=("4-bit KL 0.1234 is over 0.1",)).read_text()
    assert "**Not published:** 4-bit KL 0.1234 is over 0.1." in text
    assert "weight-error.png" not in text
    assert "Not published" not in write_report(folder, manifest, evaluation()).read_text()


def test_a_folder_that_is_no_report_is_left_alone(tiny_release: Path, tmp_path: Path) -> None:
    folder = report_folder(tmp_path / "release")
    folder.mkdir()
    (folder / "mine.txt").write_text("kept")
    with pytest.raises(OSError, match="not empty"):
        write_report(folder, open_release(tiny_release).manifest, evaluation())
    assert [entry.name for entry in tmp_path.iterdir()] == ["release.quality"]
    assert (folder / "mine.txt").read_text() == "kept"


def test_errors_are_watched_without_changing_what_is_made() -> None:
    weight = np.random.default_rng(4).normal(size=(8, 64)).astype(np.float32)
    plain, nester = RoundToNearest(), Watched(RoundToNearest())
    made, expected = nester.nest("model.layers.7.x", weight, 32), plain.nest("model.layers.7.x", weight, 32)
    assert (made.rest == expected.rest).all()
    assert (nester.method, nester.text_digest) == ("rtn", "")
    four, eight = by_layer(nester.errors)[7]
    assert 0.03 < four < 0.2
    assert four / 40 < eight < four / 8
    layers = by_layer(watched().errors)
    assert list(layers) == [0, 1]  # a matrix of no layer is in no layer's sum
