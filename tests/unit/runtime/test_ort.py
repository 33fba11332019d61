"""The real session over a small release: batching, chunks and moves change no token."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from release.errors import ReleaseError
from release.folder import Release, open_release
from runtime.ort import session as session_module
from runtime.ort.generate import generate, prefill
from runtime.ort.load import LoadedModel, load_model
from runtime.ort.sampling import Sampler, SamplingParams, Scratch
from runtime.ort.session import FedSession, GraphError, OrtSession, OrtStepModel
from runtime.ort.softmax import GRAPH
from runtime.ort.steps import SITS_OUT

PROMPTS = ([3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6], [2])


@pytest.fixture(scope="module")
def release(tiny_release: Path) -> Release:
    return open_release(tiny_release)


@pytest.fixture(scope="module", params=[4, 8])
def model(release: Release, request: pytest.FixtureRequest) -> LoadedModel:
    return load_model(release, request.param, slots=4, capacity=128, prefill_chunk=64)


def alone(model: LoadedModel, prompt: list[int], count: int = 12) -> list[int]:
    return [choice.token for choice in generate(model.steps, prompt, count)]


# At 4 bits a row alone is rounded otherwise than rows together (test_numerics.py), by less than these few steps show.
def test_a_ragged_batch_gives_the_tokens_each_row_gives_alone(model: LoadedModel) -> None:
    reference = [alone(model, prompt) for prompt in PROMPTS]
    answers = [[int(prefill(model.steps, row, prompt).argmax())] for row, prompt in enumerate(PROMPTS)]
    for step in range(11):
        lengths = [len(prompt) + step for prompt in PROMPTS]
        logits = model.steps.decode([answer[-1] for answer in answers], lengths)
        for answer, row in zip(answers, logits, strict=True):
            answer.append(int(row.argmax()))
    assert answers == reference


def test_a_pass_that_scores_tells_what_prefill_tells_and_is_bound_once_per_row(model: LoadedModel) -> None:
    steps, prompt, after = model.steps, PROMPTS[2], [7, 1, 8, 2]
    for row in (0, 2, 0):
        prefill(steps, row, prompt)
        for at, count in ((0, 2), (0, 4), (2, 2)):
            scored = steps.score(row, after[at : at + count], len(prompt) + at).copy()
            told = steps.prefill(row, after[at : at + count], len(prompt) + at)
            np.testing.assert_allclose(scored[-1], told, atol=1e-3)
            assert len(scored) == count
    assert len(steps._score_bindings) <= 2


class Decoding:
    """Greedy rows that are decoded on, with the choice of tokens and its signals, as a batcher does it."""

    def __init__(self, steps: OrtStepModel) -> None:
        scratch = Scratch(steps.vocab_size)
        self._steps = steps
        self._samplers = [Sampler(SamplingParams(), steps.vocab_size, scratch=scratch) for _ in range(steps.slots)]
        prompts = [PROMPTS[row % len(PROMPTS)] for row in range(steps.slots)]
        self._last = [int(prefill(steps, row, prompt).argmax()) for row, prompt in enumerate(prompts)]
        self._lengths = [len(prompt) for prompt in prompts]

    def go_on(self, count: int) -> None:
        for _ in range(count):
            logits = self._steps.decode(self._last, self._lengths)
            for row, sampler in enumerate(self._samplers):
                choice = sampler.choose(logits[row], probabilities=self._steps.probabilities[row])
                self._last[row], self._lengths[row] = choice.token, self._lengths[row] + 1


def test_decoding_binds_nothing_anew(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def bound(*_given: object) -> NoReturn:
        raise AssertionError("a step bound an array")

    decoding = Decoding(model.steps)
    monkeypatch.setattr(OrtStepModel, "_bind", bound)
    for name in ("bind_input", "bind_output"):
        monkeypatch.setattr(session_module, name, bound)
    monkeypatch.setattr(model.steps._session.run, "io_binding", bound)
    decoding.go_on(50)
    with pytest.raises(AssertionError, match="bound an array"):  # what watches would have seen it
        model.steps.prefill(0, PROMPTS[0], 0)


def test_decoding_allocates_nothing_of_the_vocabularys_length(release: Release) -> None:
    steps = load_model(release, 4, slots=16, capacity=128, prefill_chunk=64).steps
    decoding = Decoding(steps)
    decoding.go_on(2)  # what is made once
    tracemalloc.start()
    try:
        decoding.go_on(50)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Of 50 steps together. An array over all rows in a single one is twice as much, a row's logits in each six times.
    assert most < steps.slots * steps.vocab_size * 4 / 2


def test_joining_a_running_batch_and_leaving_it_changes_nothing(model: LoadedModel) -> None:
    first, second = alone(model, PROMPTS[0]), alone(model, PROMPTS[2])
    steps = model.steps
    a = [int(prefill(steps, 0, PROMPTS[0]).argmax())]
    for i in range(3):
        a.append(int(steps.decode([a[-1]], [len(PROMPTS[0]) + i])[0].argmax()))
    b = [int(prefill(steps, 3, PROMPTS[2]).argmax())]
    for start, end in ((0, 5), (5, len(PROMPTS[2]))):
        steps.move(3, 1, start, end)
    for i in range(4):
        logits = steps.decode([a[-1], b[-1]], [len(PROMPTS[0]) + 3 + i, len(PROMPTS[2]) + i])
        a.append(int(logits[0].argmax()))
        b.append(int(logits[1].argmax()))
    steps.move(1, 0, 0, len(PROMPTS[2]) + 4)
    for i in range(4):  # the first has left; the second goes on in its row
        b.append(int(steps.decode([b[-1]], [len(PROMPTS[2]) + 4 + i])[0].argmax()))
    assert a == first[: len(a)]
    assert b == second[: len(b)]


def test_rows_that_sit_out_keep_what_they_hold_and_change_nobody(model: LoadedModel) -> None:
    first, second = alone(model, PROMPTS[0]), alone(model, PROMPTS[2])
    steps, half = model.steps, 6
    a = [int(prefill(steps, 3, PROMPTS[0]).argmax())]
    steps.prefill(1, PROMPTS[2][:half], 0)  # a prompt in the middle of its prefill
    for i in range(4):
        a.append(int(steps.decode([0, 0, 0, a[-1]], [SITS_OUT] * 3 + [len(PROMPTS[0]) + i])[3].argmax()))
    b = [int(steps.prefill(1, PROMPTS[2][half:], half).argmax())]
    for i in range(4):
        logits = steps.decode([0, b[-1], 0, a[-1]], [SITS_OUT, len(PROMPTS[2]) + i, SITS_OUT, len(PROMPTS[0]) + 4 + i])
        a.append(int(logits[3].argmax()))
        b.append(int(logits[1].argmax()))
    assert (a, b) == (first[: len(a)], second[: len(b)])


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_a_prompt_in_chunks_gives_the_same_logits(model: LoadedModel, chunk: int) -> None:
    prompt = list(np.random.default_rng(0).integers(3, 300, 50))
    whole = model.steps.prefill(0, prompt, 0).copy()
    # 8-bit activations are rounded per row, so a chunk border moves the last digits only.
    assert np.abs(prefill(model.steps, 1, prompt, chunk) - whole).max() < 1e-3


def test_rows_do_not_remember_who_was_there_before(model: LoadedModel) -> None:
    fresh = alone(model, PROMPTS[1])
    alone(model, PROMPTS[2], 60)
    assert alone(model, PROMPTS[1]) == fresh


def test_generation_ends_before_a_stop_token_and_at_a_full_row(model: LoadedModel) -> None:
    tokens = alone(model, PROMPTS[0])
    stop = next(token for token in tokens if token != tokens[0])
    ended = [choice.token for choice in generate(model.steps, PROMPTS[0], 12, {stop})]
    assert ended == tokens[: tokens.index(stop)]
    assert len(list(generate(model.steps, [5] * 120, 100))) == 9
    with pytest.raises(ValueError, match="fewer than 128"):
        next(generate(model.steps, [5] * 128, 1))


def test_equal_seeds_give_equal_answers(model: LoadedModel) -> None:
    def sample(seed: int) -> list[int]:
        return [c.token for c in generate(model.steps, PROMPTS[0], 12, (), SamplingParams(1.0, 0.9, 50, seed))]

    assert sample(1) == sample(1) != sample(2)


def test_the_precisions_are_different_weights_under_their_own_digests(release: Release) -> None:
    four, eight = (load_model(release, bits, capacity=64) for bits in (4, 8))
    assert (four.weight_digest, eight.weight_digest) == (release.weight_digest(4), release.weight_digest(8))
    assert four.weight_digest != eight.weight_digest
    prompt = PROMPTS[2]
    assert np.abs(prefill(four.steps, 0, prompt) - prefill(eight.steps, 0, prompt)).max() > 1e-3


def test_a_capacity_beyond_the_models_context_is_cut(release: Release) -> None:
    assert load_model(release, 4, capacity=100_000).steps.capacity == 512


def test_a_precision_the_release_lacks_is_refused(release: Release) -> None:
    with pytest.raises(ReleaseError, match="no 2-bit"):
        load_model(release, 2)


def test_a_graph_that_is_none_is_refused() -> None:
    with pytest.raises(GraphError, match="refuses the graph"):
        OrtSession(b"no graph at all", {})


@pytest.mark.parametrize("spin", [False, True])
def test_idle_threads_spin_only_where_they_are_told_to(release: Release, spin: bool) -> None:
    bare = FedSession(GRAPH, {}, threads=2, spin=spin)
    loaded = load_model(release, 4, capacity=64, threads=2, spin=spin).steps._session
    for session in (bare, loaded):
        options = session.run.get_session_options()
        assert options.get_session_config_entry("session.intra_op.allow_spinning") == str(int(spin))
