"""Laws of batching texts: the oldest goes first, bounds hold, every text is answered once, whatever its company."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from edge.classifier.batcher import BatcherSettings, TextBatcher
from edge.classifier.job import Served
from edge.classifier.labels import probabilities, scored
from edge.classifier.pick import Bounds, pick
from release.manifest import Labelling
from runtime.ort.classify import Encoded
from tests.fakes.labels import FakeLabels, expected
from wire.deadline import Deadline

LENGTHS = st.lists(st.integers(1, 200), min_size=1, max_size=60)
BOUNDS = st.builds(Bounds, st.integers(1, 16), st.integers(1, 400), st.floats(0, 1))


@given(LENGTHS, BOUNDS)
def test_a_batch_has_the_oldest_keeps_its_bounds_and_names_nobody_twice(lengths: list[int], bounds: Bounds) -> None:
    chosen = pick(lengths, bounds)
    assert chosen[0] == 0
    assert len(set(chosen)) == len(chosen) <= max(bounds.rows, 1)
    if len(chosen) > 1:
        own = [lengths[index] for index in chosen]
        padded = len(own) * max(own)
        assert padded <= bounds.tokens
        assert padded - sum(own) <= bounds.padding * padded + 1e-9


@given(LENGTHS, BOUNDS)
def test_everybody_gets_a_turn_within_as_many_batches_as_there_are_texts(lengths: list[int], bounds: Bounds) -> None:
    left, turns = list(lengths), 0
    while left:
        chosen = set(pick(left, bounds))
        left = [length for index, length in enumerate(left) if index not in chosen]
        turns += 1
    assert turns <= len(lengths)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(1, 500), min_size=1, max_size=40), min_size=1, max_size=30), BOUNDS)
def test_every_text_is_answered_once_and_alike_in_any_company(texts: list[list[int]], bounds: Bounds) -> None:
    async def run(order: list[int]) -> dict[int, tuple[float, ...]]:
        labels = FakeLabels()
        served = Served(labels, "m@1", 8, "d")
        batcher = TextBatcher(served, BatcherSettings(bounds, max_queue=len(texts)), lambda _: None)
        try:
            waiting = {
                index: batcher.submit(served, Encoded(tuple(texts[index])), Deadline.after(10)) for index in order
            }
            found = {index: (await answer).logits for index, answer in waiting.items()}
        finally:
            batcher.close()
        assert sum(map(len, labels.batches)) == len(texts)
        return found

    forth = asyncio.run(run(list(range(len(texts)))))
    back = asyncio.run(run(list(reversed(range(len(texts))))))
    assert forth == back == {index: tuple(expected(Encoded(tuple(ids)))) for index, ids in enumerate(texts)}


LOGITS = st.lists(st.floats(-700, 700), min_size=2, max_size=20)


@given(LOGITS)
def test_labels_that_exclude_each_other_share_one_probability(logits: list[float]) -> None:
    found = probabilities(logits, Labelling())
    assert abs(sum(found) - 1) < 1e-9
    scores, labels = scored([str(index) for index in range(len(logits))], logits, Labelling())
    assert [score.score for score in scores] == sorted(found, reverse=True)
    assert logits[int(scores[0].label)] == max(logits) or found[int(scores[0].label)] == max(found)
    assert labels == ()


@given(LOGITS, st.floats(0.01, 0.99))
def test_labels_that_do_not_hold_from_their_own_threshold_on(logits: list[float], threshold: float) -> None:
    labelling = Labelling(multi_label=True, thresholds=(threshold,) * len(logits))
    names = [str(index) for index in range(len(logits))]
    scores, labels = scored(names, logits, labelling)
    assert all(0 <= score.score <= 1 for score in scores)
    assert set(labels) == {score.label for score in scores if score.score >= threshold}
    alone = probabilities(logits, labelling)
    assert alone == [probabilities([logit], labelling)[0] for logit in logits]
