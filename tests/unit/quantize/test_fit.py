"""A fitted confidence means what it says, also where there is little to learn from."""

from __future__ import annotations

import numpy as np
import pytest

from quantize.fit import Purpose, fit
from release.manifest import Calibration
from router.confidence import FEATURES, Calibrator, Signals

PURPOSE = Purpose("tiny", 4, "x86-avx2", "end", 0.1)


def signals(count: int, seed: int = 0) -> list[Signals]:
    random, made = np.random.default_rng(seed), []
    for _ in range(count):
        one = Signals(prompt_tokens=int(random.integers(10, 100)))
        for _ in range(int(random.integers(1, 9))):
            entropy = float(random.exponential(1.0))
            one = one.then(-entropy, entropy, float(random.exponential(2.0)))
        made.append(one)
    return made


def calibrator(made: Calibration) -> Calibrator:
    return Calibrator(
        made.id,
        made.precision,
        made.cpu_class,
        made.commit_rule,
        made.mean,
        made.scale,
        made.coefficients,
        made.intercept,
        made.threshold,
    )


def test_a_signal_that_tells_agreement_is_learned() -> None:
    given = signals(200)
    agreed = [one.max_entropy < 1.5 for one in given]
    made = fit(PURPOSE, given, agreed).calibration
    assert made.auroc is not None
    assert made.auroc > 0.9
    assert made.n == 200
    assert made.n_agree == sum(agreed)
    confidence = calibrator(made).confidence
    held_out = signals(300, seed=1)
    right = [confidence(one) for one in held_out if one.max_entropy < 1.0]
    wrong = [confidence(one) for one in held_out if one.max_entropy > 2.0]
    assert np.mean(right) > 0.8
    assert np.mean(wrong) < 0.3


def test_confidence_is_the_probability_of_agreement() -> None:
    """Over many items the mean confidence is the share that agreed, although single items are noisy."""
    given, random = signals(400), np.random.default_rng(2)
    agreed = [bool(random.random() < 1 / (1 + one.max_entropy)) for one in given]
    fitted = fit(PURPOSE, given, agreed)
    assert abs(np.mean(fitted.confidences) - np.mean(agreed)) < 0.03


def test_the_threshold_keeps_the_promise_on_the_items() -> None:
    given = signals(200)
    agreed = [one.max_entropy < 1.5 for one in given]
    fitted = fit(PURPOSE, given, agreed)
    pairs = zip(fitted.confidences, agreed, strict=True)
    wrong = sum(confidence >= fitted.calibration.threshold and not same for confidence, same in pairs)
    assert wrong / 200 <= 0.1


@pytest.mark.parametrize(("agreed", "threshold"), [(True, 0.0), (False, 1.0)])
def test_labels_that_are_all_equal_give_a_constant_confidence(agreed: bool, threshold: float) -> None:
    made = fit(PURPOSE, signals(20), [agreed] * 20).calibration
    assert made.auroc is None
    assert set(made.coefficients) == {0.0}
    assert 0 < calibrator(made).confidence(Signals()) < 1
    assert (made.threshold == 0.0) if agreed else (calibrator(made).confidence(Signals()) < made.threshold <= threshold)


def test_a_single_disagreement_and_a_constant_feature_do_no_harm() -> None:
    given = [Signals(prompt_tokens=5).then(-0.1, 0.1, 3.0)] * 12
    made = fit(PURPOSE, given, [True] * 11 + [False]).calibration
    assert all(scale > 0 for scale in made.scale)
    assert 0 <= calibrator(made).confidence(given[0]) <= 1


def test_equal_inputs_give_an_equal_calibration_with_its_features_named() -> None:
    given = signals(50)
    agreed = [one.min_margin > 0.2 for one in given]
    one, other = (fit(PURPOSE, given, agreed).calibration for _ in range(2))
    assert one == other
    assert one.features == FEATURES
    assert one.id.startswith("tiny-")
