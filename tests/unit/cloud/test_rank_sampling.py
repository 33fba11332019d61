"""Tokens per request: greedy stays greedy, settings hold, a seed repeats whatever else is in the batch."""

from __future__ import annotations

from collections import Counter

import torch

from cloud.rank.sampling import choose, draw, uniform_for

LOGITS = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))


def test_the_uniform_picks_by_the_cumulative_distribution() -> None:
    picked = [draw(LOGITS, 1.0, 0, 1.0, u) for u in (0.0, 0.49, 0.51, 0.79, 0.81, 0.96, 0.999999)]
    assert picked == [0, 0, 1, 1, 2, 3, 3]


def test_top_k_and_top_p_cut_the_tail() -> None:
    assert {draw(LOGITS, 1.0, 2, 1.0, u / 100) for u in range(100)} == {0, 1}
    assert {draw(LOGITS, 1.0, 0, 0.75, u / 100) for u in range(100)} == {0, 1}
    assert {draw(LOGITS, 1.0, 0, 0.4, u / 100) for u in range(100)} == {0}
    assert {draw(LOGITS, 1.0, 3, 0.8, u / 100) for u in range(100)} == {0, 1}


def test_temperature_sharpens() -> None:
    cold = Counter(draw(LOGITS, 0.1, 0, 1.0, u / 100) for u in range(100))
    hot = Counter(draw(LOGITS, 2.0, 0, 1.0, u / 100) for u in range(100))
    assert cold[0] > 95
    assert hot[0] < 45


def test_frequencies_follow_the_probabilities() -> None:
    counts = Counter(draw(LOGITS, 1.0, 0, 1.0, uniform_for(9, position)) for position in range(4000))
    assert abs(counts[0] / 4000 - 0.5) < 0.03
    assert abs(counts[3] / 4000 - 0.05) < 0.015


def test_rows_are_independent_of_their_neighbours() -> None:
    sampled = {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "seed": 3}
    alone = choose(LOGITS[None, :], [sampled], [7])
    together = choose(LOGITS.repeat(3, 1), [{}, sampled, {**sampled, "seed": 4}], [1, 7, 2])
    assert together[1] == alone[0]
    assert together[0] == 0  # greedy
