"""The choice of a token and the signals that go with it."""

from __future__ import annotations

import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest

from runtime.ort.sampling import ConstraintFailed, NotFinite, Sampler, SamplingParams, Scratch, _candidates, logprob_of


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


@pytest.mark.parametrize("known", [True, False])
def test_a_greedy_token_allocates_nothing_of_the_vocabularys_length(known: bool) -> None:
    size = 50_000
    logits = np.random.default_rng(0).normal(size=size).astype(np.float32)
    weights = np.exp(logits) / np.exp(logits).sum()
    sampler = Sampler(SamplingParams(), size)
    plain = sampler.choose(logits)  # binds
    tracemalloc.start()
    try:
        choice = sampler.choose(logits, probabilities=weights if known else None)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert choice.token == plain.token
    assert most < size / 10  # a byte a token would be ten times as much


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


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("spread", [0.01, 1.0, 8.0])
def test_top_p_draws_from_exactly_the_fewest_likeliest_that_hold_it(top_p: float, spread: float) -> None:
    logits = (np.random.default_rng(5).standard_normal(3000) * spread).astype(np.float32)
    shares = np.exp(logits.astype(np.float64) - logits.max())
    shares /= shares.sum()
    order = np.argsort(-shares)
    count = int(np.searchsorted(shares[order].cumsum(), top_p)) + 1
    found = _candidates(logits - logits.max(), shares.astype(np.float32), 0, top_p)
    assert abs(len(found) - count) <= 1, "one may fall on the border, where float32 decides"
    assert found.tolist() == order[: len(found)].tolist()


def test_a_temperature_too_small_for_float32_is_greedy() -> None:
    logits = logits_of(0.2, 0.5, 0.3)
    assert Sampler(SamplingParams(temperature=1e-60, seed=1), 3).choose(logits).token == 1


def test_top_p_over_a_flat_vocabulary_looks_beyond_the_first_candidates() -> None:
    counts = draws(SamplingParams(temperature=1.0, top_p=0.5, seed=0), np.zeros(4000, np.float32), 3000)
    assert 1000 < len(counts) <= 2001


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_numbers_raise(bad: float) -> None:
    logits = logits_of(0.2, 0.5, 0.3)
    logits[0] = bad
    with pytest.raises(NotFinite):
        Sampler(SamplingParams(), 3).choose(logits)


def test_min_p_leaves_out_what_is_far_less_likely_than_the_likeliest() -> None:
    counts = draws(SamplingParams(temperature=1.0, min_p=0.4, seed=3), logits_of(0.5, 0.26, 0.15, 0.09))
    assert set(counts) == {0, 1}
    assert set(
        draws(SamplingParams(temperature=1.0, min_p=0.1, top_k=3, seed=3), logits_of(0.5, 0.26, 0.15, 0.09))
    ) == {
        0,
        1,
        2,
    }


def test_a_bias_and_penalties_change_the_choice_and_not_what_is_reported() -> None:
    logits = np.array([2.0, 1.5, -1.0, 0.0], np.float32)
    plain = Sampler(SamplingParams(), 4).choose(logits)
    biased = Sampler(SamplingParams(logit_bias={2: 50.0, 99: 1.0}), 4).choose(logits)
    assert biased.token == 2
    assert (biased.entropy, biased.margin) == (plain.entropy, plain.margin)
    assert biased.logprob == pytest.approx(logprob_of(logits, [2])[0], abs=1e-6)


def test_presence_counts_once_and_frequency_every_time() -> None:
    logits = np.array([2.0, 1.5, 0.0], np.float32)
    presence = Sampler(SamplingParams(presence_penalty=0.6), 3)
    assert [presence.choose(logits).token for _ in range(4)] == [0, 1, 0, 0]
    frequency = Sampler(SamplingParams(frequency_penalty=0.4), 3)
    assert [frequency.choose(logits).token for _ in range(5)] == [0, 0, 1, 0, 1]


def test_the_repetition_penalty_counts_the_prompt_and_pushes_down_either_sign() -> None:
    logits = np.array([2.0, 1.9, -1.0, -1.1], np.float32)
    assert Sampler(SamplingParams(repetition_penalty=1.2), 4, [0]).choose(logits).token == 1
    assert Sampler(SamplingParams(repetition_penalty=2.0), 4, [0, 1, 2]).choose(logits).token == 0
    assert (
        Sampler(SamplingParams(repetition_penalty=5.0), 4, [0, 1, 2])
        .choose(np.array([-2.0, -1.9, -1.0, -1.1], np.float32))
        .token
        == 3
    )


def bits(*tokens: int, words: int = 2) -> np.ndarray:
    mask = np.zeros(words, np.uint32)
    for token in tokens:
        mask[token // 32] |= np.uint32(1 << (token % 32))
    return mask


def test_a_mask_leaves_only_what_it_allows_greedy_or_drawn() -> None:
    logits = np.arange(50, dtype=np.float32) / 10
    greedy = Sampler(SamplingParams(), 50)
    assert greedy.choose(logits, bits(3, 40)).token == 40
    assert greedy.choose(logits, bits(3, 49)).token == 49
    assert greedy.choose(logits, bits(3, words=1)).token == 3, "logits beyond the mask are allowed nowhere"
    drawing = Sampler(SamplingParams(temperature=1.0, top_p=0.9, seed=1), 50)
    assert {drawing.choose(logits, bits(3, 20, 40)).token for _ in range(200)} <= {3, 20, 40}
    free, held = Sampler(SamplingParams(), 50).choose(logits), greedy.choose(logits, bits(3))
    assert (held.entropy, held.margin) == (free.entropy, free.margin)
    with pytest.raises(ConstraintFailed, match="no token"):
        greedy.choose(logits, bits())


def test_the_likeliest_are_told_with_their_log_probs() -> None:
    logits = logits_of(0.2, 0.5, 0.3)
    top = Sampler(SamplingParams(temperature=2.0, seed=1), 3).choose(logits, top=2).top
    assert [token for token, _ in top] == [1, 2]
    assert [math.exp(logprob) for _, logprob in top] == pytest.approx([0.5, 0.3], abs=1e-5)


def test_samplers_of_one_thread_may_share_their_scratch() -> None:
    logits, scratch = np.random.default_rng(0).normal(size=300).astype(np.float32), Scratch(300)
    params = [SamplingParams(temperature=1.0, seed=seed, top_p=0.9) for seed in range(4)]
    sharing = [Sampler(p, 300, scratch=scratch) for p in params]
    own = [Sampler(p, 300) for p in params]
    for _ in range(5):
        assert [s.choose(logits) for s in sharing] == [s.choose(logits) for s in own]
