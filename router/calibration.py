"""Which calibrator is in force, and the thresholds that follow.

One calibrator was fitted per (precision, CPU class, commit rule). A box whose class nobody fitted
takes the most careful one that is known for the precision and commit rule; without any, there is no
confidence, and the thresholds are conservative defaults.

Must not know: files, manifests, CPU detection.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace

from router.confidence import Calibrator
from router.decision import Policy

END = "end"
CHOICE = "choice"  # the rule of answers chosen among given options: one step over them, no text
UNCALIBRATED_THRESHOLD = 0.95


def prefix_rule(tokens: int) -> str:
    """The commit rule that shows an answer after `tokens` tokens."""
    return f"prefix:{tokens}"


class Fit(enum.StrEnum):
    """How well the calibrator in force fits where it is used."""

    EXACT = "exact"
    OTHER_CPU_CLASS = "other_cpu_class"  # the most careful known one stands in
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Choice:
    """The calibrator in force for one commit rule, if any, and the threshold under which to escalate."""

    calibrator: Calibrator | None
    threshold: float
    fit: Fit

    @property
    def stop_levels(self) -> tuple[float, ...]:
        """Where to give an answer up. None of a stand-in's: its promise was measured on another CPU class."""
        return self.calibrator.stop_levels if self.calibrator is not None and self.fit is Fit.EXACT else ()


def choose(calibrators: Iterable[Calibrator], precision: int, cpu_class: str, commit_rule: str) -> Choice:
    """The calibrator for this precision, CPU class and commit rule, or the most careful stand-in."""
    fitting = [c for c in calibrators if c.precision == precision and c.commit_rule == commit_rule]
    exact = [c for c in fitting if c.cpu_class == cpu_class]
    # The id breaks ties, so that the order of the list never matters.
    best = max(exact or fitting, key=lambda c: (c.threshold, c.id), default=None)
    if best is None:
        return Choice(None, UNCALIBRATED_THRESHOLD, Fit.NONE)
    return Choice(best, best.threshold, Fit.EXACT if exact else Fit.OTHER_CPU_CLASS)


@dataclass(frozen=True, slots=True)
class InForce:
    """The choices for a precision: at the end of an answer and at its commit point."""

    end: Choice
    prefix: Choice

    def policy(self, base: Policy) -> Policy:
        """`base` with these thresholds, and the stop levels of the commit rule that is in force while decoding."""
        return replace(
            base,
            threshold_end=self.end.threshold,
            threshold_prefix=self.prefix.threshold,
            stop_levels=self.prefix.stop_levels,
        )


def for_choices(calibrators: Iterable[Calibrator], precision: int, cpu_class: str) -> InForce:
    """Those for answers that are one of given options. Calibrators of text never stand in: their signals differ."""
    chosen = choose(calibrators, precision, cpu_class, CHOICE)
    return InForce(chosen, chosen)


def in_force(
    calibrators: Iterable[Calibrator], precision: int, cpu_class: str, commit_prefix: int | None = None
) -> InForce:
    """Both choices for a precision. Without a prefix, the end's choice stands in both places."""
    known = tuple(calibrators)
    end = choose(known, precision, cpu_class, END)
    if commit_prefix is None:
        return InForce(end, end)
    return InForce(end, choose(known, precision, cpu_class, prefix_rule(commit_prefix)))
