"""The open-loop client: it keeps its pace whatever the service does, and counts from when a request was due."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from pathlib import Path

import pytest

from bench.load import NO_END, TOO_MANY, OpenLoop, Outcome, Pace, prompt_of, quantile, summarize
from runtime.tokenizer import Tokenizer
from tests.fakes.inference import FakeInference
from tests.models import write_tokenizer
from wire.errors import Overloaded
from wire.messages import GenerateRequest, Sampling

FAST = Pace(6000, seed=3)  # one in 10 ms


def ask(number: int) -> GenerateRequest:
    return GenerateRequest(prompt=f"question {number}", sampling=Sampling(max_tokens=3))


def test_arrivals_repeat_by_seed_and_keep_their_rate() -> None:
    one, again, other = (list(itertools.islice(Pace(200, seed).arrivals(), 4000)) for seed in (1, 1, 2))
    assert one == again != other
    assert all(a < b for a, b in itertools.pairwise(one))
    assert one[-1] / 4000 == pytest.approx(60 / 200, rel=0.1)


@pytest.mark.parametrize("rate", [0, -1, math.nan, 1e9])
def test_a_pace_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="per_minute"):
        Pace(rate)


def test_quantiles_are_values_that_occurred() -> None:
    values = list(range(1, 201))
    assert quantile(values, 0.5) == 100
    assert quantile(values, 0.99) == 198
    assert quantile([7.0], 0.99) == 7
    assert math.isnan(quantile([], 0.5))


def test_a_summary_counts_failures_apart() -> None:
    outcomes = [Outcome("a", 0, 0.1), Outcome("a", 1, 0.3), Outcome("a", 2, 9.0, error="Overloaded")]
    summary = summarize(outcomes)
    assert (summary.sent, summary.failed, summary.errors) == (3, 1, {"Overloaded": 1})
    assert summary.worst_ms == pytest.approx(300)


async def test_requests_belong_to_the_phase_they_were_due_in() -> None:
    service = FakeInference()
    async with OpenLoop(service, ask, FAST) as load:
        load.phase("one")
        await asyncio.sleep(0.2)
        load.phase("two")
        await asyncio.sleep(0.2)
    assert load.in_flight == 0
    assert len(load.of("one")) > 5 and len(load.of("two")) > 5
    assert len(load.outcomes) == len(service.requests) == service.finished
    assert all(not outcome.error and outcome.tokens == 3 for outcome in load.outcomes)


async def test_a_stalled_service_neither_slows_the_arrivals_nor_hides_in_the_figures() -> None:
    async with OpenLoop(FakeInference(step_s=0.1), ask, FAST) as load:
        await asyncio.sleep(0.3)
        assert load.in_flight > 15
    assert summarize(load.outcomes).p50_ms >= 290


async def test_what_the_service_refuses_is_counted_by_its_kind() -> None:
    async with OpenLoop(FakeInference(fail_before=Overloaded("full")), ask, FAST) as load:
        await asyncio.sleep(0.1)
    summary = summarize(load.outcomes)
    assert summary.failed == summary.sent == summary.errors["Overloaded"] > 3
    assert load.outcomes[0].message == "full"


async def test_what_is_in_flight_is_bounded_and_the_rest_counts_as_failed() -> None:
    service = FakeInference(hang=True)
    async with OpenLoop(service, ask, FAST, deadline_s=0.5, most_in_flight=3) as load:
        await asyncio.sleep(0.2)
        assert load.in_flight == 3
    errors = summarize(load.outcomes).errors
    assert errors[NO_END] == len(service.requests) == 3
    assert set(errors) == {NO_END, TOO_MANY}


def test_prompts_have_exactly_as_many_tokens_as_asked(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    texts = [prompt_of(tokenizer, 32, random.Random(seed)) for seed in range(5)]
    assert len(set(texts)) == 5
    assert all(len(tokenizer.encode(text)) == 32 for text in texts)
