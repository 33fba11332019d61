"""Perplexity, KL and agreement are what their definitions say, however the text is cut."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quantize.errors import QuantizeError
from quantize.evaluation_text import Window
from quantize.measure import CHUNK, agreement, walk
from tests.fakes.language import TableModel

VOCABULARY = 23


def tables() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(5)
    source = generator.normal(size=(VOCABULARY, VOCABULARY)).astype(np.float32) * 2
    return source, source + generator.normal(size=source.shape).astype(np.float32) * 0.3


def windows(lengths: tuple[int, ...]) -> list[Window]:
    generator = np.random.default_rng(6)
    every = [generator.integers(0, VOCABULARY, length + 1).tolist() for length in lengths]
    return [Window(tokens[:-1], tokens[1:]) for tokens in every]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    values = logits.astype(np.float64)
    return values - np.log(np.exp(values).sum(-1, keepdims=True))


def test_the_figures_are_those_of_a_direct_computation() -> None:
    source, other = tables()
    text = windows((CHUNK, 2 * CHUNK + 7, 1))
    told: list[int] = []
    first, tracks = walk(TableModel(source), {"other": TableModel(other)}, text, told=told.append)
    inputs = [token for window in text for token in window.inputs]
    targets = [token for window in text for token in window.targets]
    p, q = log_softmax(source)[inputs], log_softmax(other)[inputs]
    track = tracks["other"]
    assert track.kl == pytest.approx((np.exp(p) * (p - q)).sum(-1).mean(), rel=1e-4)
    assert track.perplexity == pytest.approx(math.exp(-q[np.arange(len(targets)), targets].mean()), rel=1e-5)
    assert first.perplexity == pytest.approx(math.exp(-p[np.arange(len(targets)), targets].mean()), rel=1e-5)
    assert agreement(first, track) == (p.argmax(-1) == q.argmax(-1)).mean()
    assert 0 < agreement(first, track) < 1
    assert sum(told) == len(inputs) == track.kl_by_position.size


def test_a_model_compared_with_itself_is_no_distance_away() -> None:
    source, _ = tables()
    first, tracks = walk(TableModel(source), {"same": TableModel(source)}, windows((40,)), told=lambda _: None)
    assert tracks["same"].kl == pytest.approx(0, abs=1e-7)
    assert agreement(first, tracks["same"]) == 1


def test_every_window_begins_a_sequence_anew() -> None:
    source, _ = tables()
    model = TableModel(source)
    walk(model, {}, windows((CHUNK + 3, 5)), told=lambda _: None)
    assert model.starts == [0, CHUNK, 0]


def test_logits_that_are_no_numbers_give_no_figure() -> None:
    source, other = tables()
    other[3] = np.nan
    with pytest.raises(QuantizeError, match=r"4 bits gives logits that are no numbers"):
        walk(TableModel(source), {"4 bits": TableModel(other)}, [Window([3], [3])], told=lambda _: None)
