"""Bounds a release must keep to be published: how far from its source it may be, at each precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quantize.errors import QuantizeError
from quantize.evaluation import Evaluation

WIDTHS = (4, 8)


class QualityRefused(QuantizeError):
    """The release was built and is not good enough to be published."""


@dataclass(frozen=True, slots=True)
class Gates:
    """Bounds by precision, in nats of KL and as a share of top-1 agreement; a precision without one passes."""

    max_kl: Mapping[int, float] = field(default_factory=dict)
    min_agreement: Mapping[int, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.max_kl or self.min_agreement)

    def failures(self, evaluation: Evaluation) -> tuple[str, ...]:
        """What the evaluation does not keep, with the figures; empty where all is well."""
        failed = []
        for bits, width in evaluation.widths.items():
            if width.kl > self.max_kl.get(bits, float("inf")):
                failed.append(f"{bits}-bit KL {width.kl:.4f} is over {self.max_kl[bits]:g}")
            if width.top1 < self.min_agreement.get(bits, 0.0):
                failed.append(f"{bits}-bit top-1 agreement {width.top1:.4f} is under {self.min_agreement[bits]:g}")
        return tuple(failed)

    def demand(self, evaluation: Evaluation) -> None:
        """Raises QualityRefused unless every bound is kept."""
        if failed := self.failures(evaluation):
            raise QualityRefused(f"the release is not published: {'; '.join(failed)} ({evaluation.items} positions)")


def bounds(given: Sequence[str]) -> dict[int, float]:
    """Bounds from texts such as "0.1", for both precisions, or "4=0.2". Raises ValueError naming what is wrong."""
    found: dict[int, float] = {}
    for text in given:
        bits, _, value = text.rpartition("=")
        try:
            bound = float(value)
            widths = (int(bits),) if bits else WIDTHS
        except ValueError:
            raise ValueError(f"{text!r} is no bound: say a number, or 4=NUMBER or 8=NUMBER") from None
        if not 0 <= bound < float("inf") or not set(widths) <= set(WIDTHS):
            raise ValueError(f"{text!r} is no bound: say a number, or 4=NUMBER or 8=NUMBER")
        found.update(dict.fromkeys(widths, bound))
    return found
