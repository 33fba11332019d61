"""The choice of a token and the signals that go with it."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from runtime.ort.sampling import NotFinite, Sampler, SamplingParams


def logits_of(*probabilities: float) -> np.ndarray:
    return np.log(np.array(probabilities, np.float32))


def draws(params: SamplingParams, logits: np.ndarray, count: int = 2000) -> Counter[int]:
    sampler = Sampler(params, len(logits))
    return Counter(sampler.choose(logits).token for _ in range(count))


def test_greedy_takes_the_likeliest_and_measures_the_distribution() -> None:
    choice = Sampler(SamplingParams(), 3).choose(logits_of(0.2, 0.5, 0.3))
    assert choice.token == 1
    assert choice.logprob == pytest.approx(math.log(0.5), abs=1e-5)
    assert choice.margin == pytest.approx(math.log(0.5 / 0.3), abs=1e-5)
    assert choice.entropy == pytest.approx(-sum(p * math.log(p) for p in (0.2, 0.5, 0.3)), abs=1e-5)


def test_the_logits_stay_as_they_are() -> None:
    logits = logits_of(0.2, 0.5, 0.3)
    before = logits.copy()
    Sampler(SamplingParams(temperature=1.5, top_p=0.7, top_k=2, seed=1), 3).choose(logits)
    assert (logits == before).all()


def test_signals_do_not_depend_on_sampling_settings() -> None:
    logits = np.random.default_rng(0).normal(size=500).astype(np.float32)
    plain = Sampler(SamplingParams(), 500).choose(logits)
    hot = Sampler(SamplingParams(temperature=2.0, top_p=0.5, seed=3), 500).choose(logits)
    assert (hot.entropy, hot.margin) == (plain.entropy, plain.margin)
    assert hot.logprob == pytest.approx(float(logits[hot.token]) - math.log(np.exp(logits).sum()), abs=1e-4)


def test_equal_seeds_repeat_and_others_differ() -> None:
    logits = np.zeros(1000, np.float32)

    def tokens(seed: int) -> list[int]:
        sampler = Sampler(SamplingParams(temperature=1.0, seed=seed), 1000)
        return [sampler.choose(logits).token for _ in range(5)]

    assert tokens(1) == tokens(1) != tokens(2)


def test_the_largest_seed_is_taken() -> None:
    Sampler(SamplingParams(temperature=1.0, seed=2**64 - 1), 3).choose(logits_of(0.2, 0.5, 0.3))


def test_draws_follow_the_distribution() -> None:
    counts = draws(SamplingParams(temperature=1.0, seed=0), logits_of(0.2, 0.5, 0.3))
    assert counts[1] / 2000 == pytest.approx(0.5, abs=0.05)


def test_temperature_sharpens() -> None:
    counts = draws(SamplingParams(temperature=0.25, seed=0), logits_of(0.2, 0.5, 0.3))
    assert counts[1] / 2000 == pytest.approx(0.5**4 / (0.2**4 + 0.5**4 + 0.3**4), abs=0.05)


def test_top_k_leaves_the_k_likeliest() -> None:
    assert set(draws(SamplingParams(temperature=1.0, top_k=2, seed=0), logits_of(0.2, 0.5, 0.3))) == {1, 2}


def test_top_p_leaves_the_fewest_that_hold_it() -> None:
    assert set(draws(SamplingParams(temperature=1.0, top_p=0.6, seed=0), logits_of(0.2, 0.5, 0.3))) == {1, 2}
    assert set(draws(SamplingParams(temperature=1.0, top_p=0.4, seed=0), logits_of(0.2, 0.5, 0.3))) == {1}


def test_top_p_applies_to_what_top_k_left() -> None:
    params = SamplingParams(temperature=1.0, top_p=0.6, top_k=2, seed=0)  # 0.5 of 0.8 is 0.625
    assert set(draws(params, logits_of(0.2, 0.5, 0.3))) == {1}


def test_top_p_over_a_flat_vocabulary_looks_beyond_the_first_candidates() -> None:
    counts = draws(SamplingParams(temperature=1.0, top_p=0.5, seed=0), np.zeros(4000, np.float32), 3000)
    assert 1000 < len(counts) <= 2001


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_numbers_raise(bad: float) -> None:
    logits = logits_of(0.2, 0.5, 0.3)
    logits[0] = bad
    with pytest.raises(NotFinite):
        Sampler(SamplingParams(), 3).choose(logits)
