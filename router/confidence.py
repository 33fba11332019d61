"""From decode-time signals to a calibrated confidence.

Signals are running aggregates over the tokens decoded so far, of the distribution before any
sampling setting touched it. The mean log-prob alone wastes most of what they tell; the calibrator is
a logistic regression over several of them, fitted per (precision, CPU class, commit rule) when a
release is built, and evaluated here with nothing but arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Signals:
    """Aggregates over `tokens` decoded tokens. Log-probs and entropies in nats.

    `margin` is the log-prob difference of the two likeliest tokens at a step.
    """

    tokens: int = 0
    sum_logprob: float = 0.0
    min_logprob: float = 0.0
    second_min_logprob: float = 0.0
    first_logprob: float = 0.0
    sum_entropy: float = 0.0
    max_entropy: float = 0.0
    min_margin: float = 0.0
    sum_margin: float = 0.0
    prompt_tokens: int = 0

    def then(self, logprob: float, entropy: float, margin: float) -> Signals:
        """These signals after one more token."""
        if self.tokens == 0:
            low = second = first = logprob
            least = margin
        else:
            low, second, first = self.min_logprob, self.second_min_logprob, self.first_logprob
            if logprob < low:
                low, second = logprob, low
            elif logprob < second:
                second = logprob
            least = min(self.min_margin, margin)
        # By position: this is done at every token, and names cost twice as much.
        return Signals(
            self.tokens + 1,
            self.sum_logprob + logprob,
            low,
            second,
            first,
            self.sum_entropy + entropy,
            max(self.max_entropy, entropy),
            least,
            self.sum_margin + margin,
            self.prompt_tokens,
        )


FEATURES = (
    "mean_logprob",
    "min_logprob",
    "low2_logprob",
    "first_logprob",
    "sum_logprob",
    "mean_entropy",
    "max_entropy",
    "min_margin",
    "mean_margin",
    "log_tokens",
    "log_prompt_tokens",
)


def features(s: Signals) -> tuple[float, ...]:
    """The calibrator's inputs, in the order of FEATURES."""
    n = max(s.tokens, 1)
    return (
        s.sum_logprob / n,
        s.min_logprob,
        (s.min_logprob + s.second_min_logprob) / 2,
        s.first_logprob,
        s.sum_logprob,
        s.sum_entropy / n,
        s.max_entropy,
        s.min_margin,
        s.sum_margin / n,
        math.log(n),
        math.log1p(s.prompt_tokens),
    )


@dataclass(frozen=True, slots=True)
class Calibrator:
    """A fitted logistic regression and the threshold chosen with it.

    `mean` and `scale` standardize the features; `threshold` is the confidence under which a request
    wants to escalate. `commit_rule` is "end" or "prefix:<tokens>": the moment it was fitted for. `features` names
    the inputs: a decoder's, unless it was fitted for a classifier (router.label_confidence). `stop_levels` are the
    levels of its running confidence under which an answer is given up (router.early_stop); none: never.
    """

    id: str
    precision: int
    cpu_class: str
    commit_rule: str
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    coefficients: tuple[float, ...]
    intercept: float
    threshold: float
    features: tuple[str, ...] = FEATURES
    stop_levels: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("mean", "scale", "coefficients"):
            if len(getattr(self, name)) != len(self.features):
                raise ValueError(
                    f"calibrator {self.id}: {name} has {len(getattr(self, name))} entries, not {len(self.features)}"
                )
        if not all(scale > 0 for scale in self.scale):
            raise ValueError(f"calibrator {self.id}: every scale must be above 0")

    def confidence(self, signals: Signals) -> float:
        """Calibrated probability in [0, 1] that the cloud would have answered the same."""
        return self.of(features(signals))

    def of(self, values: Sequence[float]) -> float:
        """The same, from the values of `features`."""
        z = self.intercept + sum(
            c * (x - m) / s for c, x, m, s in zip(self.coefficients, values, self.mean, self.scale, strict=True)
        )
        return 1 / (1 + math.exp(-max(min(z, 500.0), -500.0)))
