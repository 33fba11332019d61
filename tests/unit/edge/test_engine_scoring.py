"""Continuations and options: what is scored, in how few passes, and which is chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.engine.batcher import Batcher
from edge.engine.choice import chosen
from edge.engine.job import Event, Job, Scored, Served, Ticket
from edge.engine.lane import Lane
from edge.engine.running import Running
from edge.engine.scoring import Scoring
from tests.fakes.steps import FakeSteps, expected
from tests.unit.edge.test_engine_batcher import collect, job, serve
from wire.deadline import Deadline

VOCABULARY, END = 12, 11


def after(prefix: Sequence[int]) -> np.ndarray:
    """Made-up logits of a model that has seen `prefix`."""
    return np.random.default_rng([7, *prefix]).normal(size=VOCABULARY).astype(np.float32)


def logprob(prefix: Sequence[int], token: int) -> float:
    logits = after(prefix).astype(np.float64)
    return float(logits[token] - np.log(np.exp(logits).sum()))


def run(continuations: Sequence[tuple[int, ...]], most: int, stops: tuple[int, ...] = (END,)) -> tuple[Scoring, int]:
    scoring, passes = Scoring(continuations, stops), 0
    scoring.prompted(after(()))
    while not scoring.done:
        chunk, at = scoring.next_chunk(most)
        ids = next(
            ids for ids in continuations if ids[at : at + len(chunk)] == chunk and scoring._all[scoring._index] == ids
        )
        passes += 1
        scoring.took(np.stack([after(ids[: at + i + 1]) for i in range(len(chunk))]))
    return scoring, passes


_continuations = st.lists(
    st.lists(st.integers(0, VOCABULARY - 2), min_size=1, max_size=6).map(tuple), min_size=1, max_size=6, unique=True
)


@given(_continuations, st.integers(1, 8))
def test_every_token_is_scored_after_all_before_it(continuations: list[tuple[int, ...]], most: int) -> None:
    scoring, _ = run(continuations, most)
    for ids, logprobs, end in zip(continuations, scoring.logprobs, scoring.ends, strict=True):
        assert logprobs == pytest.approx([logprob(ids[:at], token) for at, token in enumerate(ids)], abs=1e-4)
        longer = any(len(other) > len(ids) and other[: len(ids)] == ids for other in continuations)
        assert end == pytest.approx(logprob(ids, END) if longer else 0.0, abs=1e-4)


@given(_continuations, st.lists(st.integers(1, 8), min_size=1), st.sampled_from([(), (END,)]))
def test_no_token_is_taken_alone_that_has_company(
    continuations: list[tuple[int, ...]], mosts: list[int], stops: tuple[int, ...]
) -> None:
    scoring, passes = Scoring(continuations, stops), 0
    scoring.prompted(after(()))
    while not scoring.done:
        index, most = scoring._index, mosts[passes % len(mosts)]
        chunk, _ = scoring.next_chunk(most)
        assert 0 < len(chunk) <= max(most, 3)
        assert len(chunk) > 1 or scoring._passes(index) == 1
        scoring.took(np.stack([after(chunk)] * len(chunk)))
        passes += 1


async def test_scores_do_not_depend_on_load_and_the_pace_learns_from_them() -> None:
    steps = FakeSteps(slots=3, score_chunk=8)
    served = serve(steps)
    told: list[Event] = []
    lane = Lane(served, lambda _, event: told.append(event))
    lane.admit(Running(Ticket(), job(served, [1, 2], 60)))
    lane.step()
    lane.step()
    continuation = tuple(range(1, 12))
    before = len(steps.scored)
    lane.admit(Running(Ticket(), Job(served, [3] * 9, 11, Deadline.after(5), continuations=(continuation,))))
    learned: list[tuple[int, int]] = []
    lane.pace.prefilled = lambda tokens, position, *_, **__: learned.append((tokens, position))  # type: ignore[method-assign]
    while lane.active > 1:
        lane.step()
    passes = steps.scored[before:]
    assert sum(passes) == 10
    assert min(passes) > 1
    assert learned[-len(passes) :] == [(n, 9 + sum(passes[:i])) for i, n in enumerate(passes)]


def test_options_of_one_token_cost_no_pass_and_others_as_few_as_fit() -> None:
    assert run([(1,), (2,), (3,)], 4)[1] == 0
    assert run([(1, 2, 3, 4, 5), (2,)], 4)[1] == 1
    assert run([(1, 2, 3, 4, 5, 6), (2, 3)], 4)[1] == 3


def scored(*options: tuple[Sequence[float], float]) -> Scored:
    served = Served(FakeSteps(), str, frozenset(), "m@1", 8, "d")
    return Scored(tuple(tuple(lps) for lps, _ in options), tuple(end for _, end in options), served, 1.0, 2.0, 3.0, 16)


def options_job(*ids: tuple[int, ...]) -> Job:
    served = Served(FakeSteps(), str, frozenset(), "m@1", 8, "d")
    return Job(served, [1, 2, 3], max(map(len, ids)), Deadline.after(5), continuations=ids)


def test_the_likeliest_option_is_the_answer_and_its_signals_are_of_the_options() -> None:
    tokens, ended = chosen(
        scored(([math.log(0.02)], 0.0), ([math.log(0.2), math.log(0.3)], 0.0)),
        options_job((5,), (6, 7)),
        ("no", "yes, sure"),
    )
    assert [token.token for token in tokens] == [6, 7]
    assert "".join(token.text for token in tokens) == "yes, sure"
    assert [token.logprob for token in tokens] == pytest.approx([math.log(0.2), math.log(0.3)])
    signals = ended.signals
    assert (signals.tokens, signals.prompt_tokens, ended.cached_tokens, ended.finish_reason) == (1, 3, 16, "stop")
    assert math.exp(signals.sum_logprob) == pytest.approx(0.06 / 0.08)
    assert signals.min_margin == pytest.approx(math.log(3))
    assert signals.max_entropy == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))


def test_a_shorter_option_loses_where_the_text_would_go_on() -> None:
    tokens, _ = chosen(
        scored(([math.log(0.5)], math.log(0.1)), ([math.log(0.5), math.log(0.8)], 0.0)),
        options_job((5,), (5, 7)),
        ("no", "no idea"),
    )
    assert len(tokens) == 2


def test_a_lone_option_is_sure() -> None:
    _, ended = chosen(scored(([-50.0], 0.0)), options_job((5,)), ("yes",))
    assert (ended.signals.sum_logprob, ended.signals.max_entropy) == (0.0, 0.0)
    assert ended.signals.min_margin > 10


async def test_scoring_shares_a_prompt_and_takes_turns_with_answers() -> None:
    steps = FakeSteps(slots=3, prefix_blocks=8)
    served = serve(steps)
    batcher = Batcher(served, 3, 16, print)
    try:
        prompt = [1] * 40
        right = tuple(expected(prompt, 4))
        wrong = (right[0], right[1] % 50 + 2, 3)
        running = [batcher.submit(job(served, [i], 40)) for i in (5, 6)]
        ticket = batcher.submit(Job(served, prompt, 4, Deadline.after(5), continuations=(wrong, right, right[:1])))
        event = await ticket.next()
        assert isinstance(event, Scored)
        assert min(event.logprobs[1]) > -0.1 > max(event.logprobs[0][1:])
        assert event.logprobs[2] == event.logprobs[1][:1]
        assert [tokens for tokens, _ in [await collect(t) for t in running]] == [expected([i], 40) for i in (5, 6)]
        again = await batcher.submit(Job(served, prompt, 4, Deadline.after(5), continuations=(right,))).next()
        assert isinstance(again, Scored)
        assert again.cached_tokens == 32
    finally:
        batcher.close()
