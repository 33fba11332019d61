"""The quality report beside a release: what was measured, in Markdown with pictures.

It is for people; what binds is in the manifest, which the report repeats. It lies outside the release, so
that drawing it anew changes no id.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from quantize.evaluation import FLOAT_BITS, Evaluation
from quantize.quality_plots import ERROR_PICTURE, KL_PICTURE, SIZE_PICTURE, TOP1_PICTURE, draw
from quantize.weight_errors import WeightError
from release.manifest import Manifest

REPORT = "report.md"
_CAPTIONS = {
    KL_PICTURE: "Divergence by position",
    TOP1_PICTURE: "Top-1 agreement",
    ERROR_PICTURE: "Weight error by layer",
    SIZE_PICTURE: "Sizes",
}


def report_folder(out: Path) -> Path:
    """Where the report of the release at `out` lies."""
    return out.with_name(f"{out.name}.quality")


def write_report(
    folder: Path,
    manifest: Manifest,
    evaluation: Evaluation,
    errors: Sequence[WeightError] = (),
    refused: Sequence[str] = (),
) -> Path:
    """Writes report.md and its pictures into `folder`, in place of an earlier report; returns the report's path.

    `refused` are the bounds that the release does not keep.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        pictures = draw(draft, manifest, evaluation, errors)
        lines = [*_head(manifest, evaluation, refused), *_figures(evaluation), *_levels(evaluation), *_recipe(manifest)]
        lines += [f"\n## {_CAPTIONS[name]}\n\n![{_CAPTIONS[name]}]({name})" for name in pictures]
        (draft / REPORT).write_text("\n".join(lines) + "\n", encoding="utf-8")
        if (folder / REPORT).is_file():
            shutil.rmtree(folder)
        draft.chmod(0o755)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder / REPORT


def _head(manifest: Manifest, evaluation: Evaluation, refused: Sequence[str]) -> Iterator[str]:
    yield f"# Quality of {manifest.id}"
    yield ""
    if refused:
        yield f"**Not published:** {'; '.join(refused)}."
        yield ""
    for warning in evaluation.warnings:
        yield f"**Note:** {warning}."
        yield ""
    yield (
        f"Measured on {datetime.now(UTC):%Y-%m-%d} on a CPU of class {evaluation.cpu_class}, at {evaluation.items} "
        f"positions or texts, seed {evaluation.seed}, data SHA-256 `{evaluation.data_digest}`. The reference is the "
        "float32 source; the release is served as an edge node serves it."
    )


def _figures(evaluation: Evaluation) -> Iterator[str]:
    is_text = evaluation.source_perplexity is not None
    yield f"\n| | {'perplexity' if is_text else 'accuracy'} | KL, nats | top-1 agreement |\n|---|---|---|---|"
    source = evaluation.source_perplexity if is_text else evaluation.source_accuracy
    yield f"| source, {FLOAT_BITS}-bit float | {_number(source)} | | |"
    for bits, width in evaluation.widths.items():
        own = width.perplexity if is_text else width.accuracy
        yield f"| {bits} bits | {_number(own)} | {width.kl:.5f} | {width.top1:.4f} |"


def _levels(evaluation: Evaluation) -> Iterator[str]:
    yield "\n## Inputs rounded to int8 (accuracy level 4) against float inputs (level 0)\n"
    yield "| | KL, level 4 | KL, level 0 | likeliest answers changed | positions |\n|---|---|---|---|---|"
    for bits, width in evaluation.widths.items():
        level = width.level
        yield f"| {bits} bits | {level.kl:.5f} | {level.kl_float_inputs:.5f} | {level.flips:.2%} | {level.items} |"


def _recipe(manifest: Manifest) -> Iterator[str]:
    recipe = manifest.recipe
    yield "\n## How it was made\n"
    yield f"- method {recipe.method}, block {recipe.block_size}, head {recipe.head_bits} bits"
    yield f"- source weights SHA-256 `{recipe.source_digest}`"
    if recipe.text_digest:
        yield f"- calibration text SHA-256 `{recipe.text_digest}`"
    yield "- " + ", ".join(f"{name} {version}" for name, version in sorted(recipe.tools.items()))
    for entry in sorted(manifest.files, key=lambda entry: -entry.bytes):
        yield f"- {entry.name}: {entry.bytes:,} bytes"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
