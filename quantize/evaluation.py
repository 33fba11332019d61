"""What an evaluation found, and how a manifest keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from release.manifest import QualityFigure
from release.planes import Floats

FLOAT_BITS = 32
PERPLEXITY, KL, TOP1, ACCURACY = "perplexity", "kl", "top1_agreement", "accuracy"
KL_FLOAT_INPUTS, FLIPS = "kl_float_inputs", "accuracy_level_flips"
NAMES = (PERPLEXITY, KL, TOP1, ACCURACY, KL_FLOAT_INPUTS, FLIPS)
# Twice what SmolLM2 shows, which has no outliers: rounded inputs move its near ties alone.
MOST_FLIPS = 0.08


@dataclass(frozen=True, slots=True)
class Level:
    """What rounding the inputs of products to int8 costs at one width, over `items` positions.

    KL to the source with it (the way a release is served) and without, and the share of positions at which the
    two find another token likeliest.
    """

    kl: float
    kl_float_inputs: float
    flips: float
    items: int

    @property
    def suspicious(self) -> bool:
        return self.flips > MOST_FLIPS


@dataclass(frozen=True, slots=True)
class Width:
    """One precision against the float32 source; perplexity of decoders, accuracy of classifiers.

    `kl_by_position` is for drawing alone.
    """

    kl: float
    top1: float
    level: Level
    kl_by_position: Floats
    perplexity: float | None = None
    accuracy: float | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Everything measured in one run over `items` positions or texts."""

    widths: Mapping[int, Width]
    items: int
    seed: int
    data_digest: str
    cpu_class: str
    source_perplexity: float | None = None
    source_accuracy: float | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(
            f"at {bits} bits, rounding the inputs of products to int8 changes {width.level.flips:.1%} of the likeliest "
            f"answers (more than {MOST_FLIPS:.0%}): KL {width.level.kl:.4f} with it, {width.level.kl_float_inputs:.4f} "
            "without. The model may have outlier activations"
            for bits, width in self.widths.items()
            if width.level.suspicious
        )

    def figures(self) -> tuple[QualityFigure, ...]:
        """As a manifest keeps them. Precision 32 is the float32 source."""
        found = _named(
            {PERPLEXITY: self.source_perplexity, ACCURACY: self.source_accuracy}, FLOAT_BITS, self.items, self
        )
        for bits, width in self.widths.items():
            whole = {PERPLEXITY: width.perplexity, KL: width.kl, TOP1: width.top1, ACCURACY: width.accuracy}
            level = {KL_FLOAT_INPUTS: width.level.kl_float_inputs, FLIPS: width.level.flips}
            found += _named(whole, bits, self.items, self) + _named(level, bits, width.level.items, self)
        return found


def _named(values: Mapping[str, float | None], bits: int, items: int, run: Evaluation) -> tuple[QualityFigure, ...]:
    return tuple(
        QualityFigure(name, value, bits, items, run.seed, run.data_digest, run.cpu_class)
        for name, value in values.items()
        if value is not None
    )
