"""Which calibrator is in force, and what one computes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from router.calibration import UNCALIBRATED_THRESHOLD, Fit, choose, in_force
from router.confidence import FEATURES, Calibrator, Signals, features
from router.decision import Policy

N = len(FEATURES)
BASE = Calibrator("c", 4, "x86-vnni", "end", (0.0,) * N, (1.0,) * N, (0.0,) * N, 0.0, 0.6)
KNOWN = (
    replace(BASE, id="vnni-end"),
    replace(BASE, id="neon-end", cpu_class="arm-neon", threshold=0.8),
    replace(BASE, id="avx2-end", cpu_class="x86-avx2", threshold=0.7),
    replace(BASE, id="vnni-8", commit_rule="prefix:8", threshold=0.75),
    replace(BASE, id="vnni-end-8bit", precision=8, threshold=0.4),
)


def test_an_exact_fit_is_taken() -> None:
    choice = choose(KNOWN, 4, "x86-vnni", "end")
    assert (choice.calibrator, choice.threshold, choice.fit) == (KNOWN[0], 0.6, Fit.EXACT)


def test_an_unknown_cpu_class_takes_the_most_careful_threshold_known() -> None:
    choice = choose(KNOWN, 4, "riscv", "end")
    assert (choice.calibrator, choice.threshold, choice.fit) == (KNOWN[1], 0.8, Fit.OTHER_CPU_CLASS)


@pytest.mark.parametrize(("precision", "rule"), [(8, "prefix:8"), (4, "prefix:9"), (2, "end")])
def test_another_precision_or_commit_rule_is_no_stand_in(precision: int, rule: str) -> None:
    choice = choose(KNOWN, precision, "x86-vnni", rule)
    assert (choice.calibrator, choice.threshold, choice.fit) == (None, UNCALIBRATED_THRESHOLD, Fit.NONE)


def test_the_lists_order_does_not_matter() -> None:
    twins = (replace(BASE, id="a"), replace(BASE, id="b"))
    assert choose(twins, 4, "x86-vnni", "end") == choose(reversed(twins), 4, "x86-vnni", "end")


def test_thresholds_per_precision_make_a_policy() -> None:
    four = in_force(iter(KNOWN), 4, "x86-vnni", 8).policy(Policy(value_weight=2.0))
    assert (four.threshold_end, four.threshold_prefix, four.value_weight) == (0.6, 0.75, 2.0)
    eight = in_force(KNOWN, 8, "x86-vnni").policy(Policy())
    assert (eight.threshold_end, eight.threshold_prefix) == (0.4, 0.4)


def test_stop_levels_are_those_of_the_commit_rule_in_force() -> None:
    known = (
        replace(BASE, id="e", stop_levels=(0.1, 0.2)),
        replace(BASE, id="p", commit_rule="prefix:8", stop_levels=(0.3,)),
    )
    assert in_force(known, 4, "x86-vnni").policy(Policy()).stop_levels == (0.1, 0.2)
    assert in_force(known, 4, "x86-vnni", 8).policy(Policy()).stop_levels == (0.3,)
    assert in_force(known, 4, "x86-vnni", 9).policy(Policy()).stop_levels == ()


def test_a_stand_in_from_another_cpu_class_gives_nothing_up() -> None:
    """How rarely it would be wrong was measured on that class alone."""
    known = (replace(BASE, stop_levels=(0.5,)),)
    force = in_force(known, 4, "riscv")
    assert force.end.calibrator is known[0]
    assert force.policy(Policy()).stop_levels == ()


def test_signals_are_running_aggregates() -> None:
    signals = Signals(prompt_tokens=7)
    for logprob, entropy, margin in ((-1.0, 0.5, 2.0), (-0.1, 1.5, 3.0), (-2.0, 0.1, 0.5)):
        signals = signals.then(logprob, entropy, margin)
    assert signals == Signals(3, pytest.approx(-3.1), -2.0, -1.0, -1.0, pytest.approx(2.1), 1.5, 0.5, 5.5, 7)


def test_features_follow_their_names() -> None:
    signals = Signals(2, -2.0, -1.5, -0.5, -0.5, 1.0, 0.8, 0.3, 1.0, 6)
    assert dict(zip(FEATURES, features(signals), strict=True)) == {
        "mean_logprob": -1.0,
        "min_logprob": -1.5,
        "low2_logprob": -1.0,
        "first_logprob": -0.5,
        "sum_logprob": -2.0,
        "mean_entropy": 0.5,
        "max_entropy": 0.8,
        "min_margin": 0.3,
        "mean_margin": 0.5,
        "log_tokens": math.log(2),
        "log_prompt_tokens": math.log(7),
    }


def test_a_calibrator_is_a_logistic_regression_over_standardized_features() -> None:
    weights = (0.5,) + (0.0,) * (N - 1)
    calibrator = replace(BASE, coefficients=weights, intercept=0.2, mean=(-0.4,) * N, scale=(0.5,) * N)
    z = 0.2 + 0.5 * (-1.0 + 0.4) / 0.5
    assert calibrator.confidence(Signals(2, -2.0)) == pytest.approx(1 / (1 + math.exp(-z)))


def test_a_calibrator_stays_within_bounds_and_an_impossible_signal_gives_no_number() -> None:
    wild = replace(BASE, coefficients=(1e300,) * N)
    assert wild.confidence(Signals(2, -2.0, max_entropy=5.0)) in (pytest.approx(0.0), pytest.approx(1.0))
    assert math.isnan(replace(BASE, coefficients=(1.0,) * N).confidence(Signals(2, math.nan)))


def test_a_calibrator_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="coefficients"):
        replace(BASE, coefficients=(1.0,))
    with pytest.raises(ValueError, match="scale"):
        replace(BASE, scale=(0.0,) * N)
