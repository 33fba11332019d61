"""Releases for tests: random ones and a real one, built once per state of the code and kept in the cache."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from quantize import exporter
from quantize.architecture import SourceModel
from quantize.build import build_release
from quantize.export import GRAPH, Export, export_graph
from quantize.progress import Silent
from quantize.sources.cache import Cache, sha256_of
from quantize.sources.resolve import resolve
from tests.models import tiny_family_folder, tiny_llama_folder, tiny_qwen2_folder

# A model folder to take instead of fetching the catalogue's; its weights must be SmolLM2's.
SMOLLM2_FOLDER = "WEIR_TEST_SMOLLM2"

_DIGITS, _KEPT = 12, 4
# Parts of quantize that leave these releases, rounded to nearest, as they are: changing them builds nothing anew.
_AFTER_THE_BUILD = {
    "agreement", "calibrate", "edge_answers", "evaluate", "evaluation", "evaluation_text", "fit", "gates", "items",
    "levels", "measure", "progress", "quality_plots", "quality_report", "reference", "sealing", "selftest", "sizes",
    "speed", "subjects", "verdicts", "weight_errors",
}  # fmt: skip
_OTHER_METHODS = {"calibration_text", "compensate", "gptq", "grid", "walk"}


def tiny() -> Path:
    """A release, 4 and 8 bits, of a random Llama with a context of 512 tokens; `tiny_hf` is its source."""
    return _kept("tiny", _tiny(tiny_llama_folder, "tiny")) / "release"


def tiny_hf() -> Path:
    """The model folder that `tiny` was built from."""
    return _kept("tiny", _tiny(tiny_llama_folder, "tiny")) / "hf"


def tiny_qwen2() -> Path:
    """A folder with `release` and its source `hf`: a random Qwen2 with biases and a tied embedding."""
    return _kept("tiny-qwen2", _tiny(tiny_qwen2_folder, "tiny-qwen2"))


def tiny_family(family: str) -> Path:
    """A folder with `release` and its source `hf`: a random model of a family of tests.models.FAMILY_SETTINGS."""

    def build(draft: Path) -> None:
        source = tiny_family_folder(draft / "hf", family)
        build_release(source, draft / "release", name=f"tiny-{family}", export=export_here)

    return _kept(f"tiny-{family}", build)


def export_here(source: SourceModel, work: Path, *, threads: int) -> Path:
    """Exports in this process, which has most of what that takes loaded already."""
    exporter.run(("-i", str(source.path), "-o", str(work / "exported"), "-p", "fp32", "-e", "cpu", "-c", str(work)))
    return work / "exported" / GRAPH


def smollm2() -> Path:
    """A release of SmolLM2-135M-Instruct, without calibrations."""

    def build(draft: Path) -> None:
        source = Path(os.environ.get(SMOLLM2_FOLDER, "") or resolve("smollm2-135m-instruct").folder)
        # Rounded to nearest, a 4-bit head costs it most of its wits; 8 bits leave it enough to be asked questions.
        build_release(source, draft / "release", name="smollm2-135m-instruct", head_bits=8)

    return _kept("smollm2", build) / "release"


def tiny_exported() -> Export:
    """An exporter for `tiny_hf` that copies what was exported before, for builds that are to be quick."""

    def export(source: SourceModel, work: Path, *, threads: int) -> Path:
        kept = _kept("tiny", _tiny(tiny_llama_folder, "tiny")) / "exported"
        return shutil.copytree(kept, work / "exported") / GRAPH

    return export


def _tiny(make: Callable[[Path], Path], name: str) -> Callable[[Path], None]:
    def build(draft: Path) -> None:
        def export(source: SourceModel, work: Path, *, threads: int) -> Path:
            graph = export_graph(source, work, threads=threads)
            shutil.copytree(graph.parent, draft / "exported")
            return graph

        build_release(make(draft / "hf"), draft / "release", name=name, export=export)

    return build


def _kept(name: str, build: Callable[[Path], None]) -> Path:
    """A folder that `build` fills, kept under a digest of the code that builds releases."""
    root = Path(__file__).parent.parent
    code = [path for part in ("quantize", "release") for path in sorted((root / part).glob("*.py"))]
    code = [
        path for path in code if path.parent.name != "quantize" or path.stem not in _AFTER_THE_BUILD | _OTHER_METHODS
    ]
    cache = Cache.from_environment(os.environ)
    key = f"test-release-{name}-{sha256_of(*code, root / 'tests' / 'models.py')[:_DIGITS]}"
    with cache.locked(key, Silent()):
        if not cache.folder(key).exists():
            with cache.making(key) as draft:
                build(draft)
            _drop_old(cache, f"test-release-{name}-")
    return cache.folder(key)


def _drop_old(cache: Cache, prefix: str) -> None:
    """Every change of the code leaves a release behind: only the newest few stay."""
    found = cache.folder(prefix).parent.glob(prefix + "?" * _DIGITS)
    for old in sorted(found, key=lambda folder: folder.stat().st_mtime, reverse=True)[_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
