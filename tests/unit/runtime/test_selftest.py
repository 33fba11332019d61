"""A session is compared with what its builder saw, within the tolerance of this box's class."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from release.manifest import SelfTest
from runtime.ort.selftest import try_out
from runtime.ort.session import GraphError
from runtime.ort.steps import Logits
from tests.fakes.steps import VOCABULARY, FakeSteps, next_token

PROMPT = tuple(1 + i % 7 for i in range(11))  # longer than the fake's chunks of 4
OTHER = 1 + next_token(PROMPT) % (VOCABULARY - 1)
SOUND = SelfTest(8, PROMPT, (next_token(PROMPT), OTHER), (9.0, 0.0), "x86-vnni", 0.01, 0.5)
OFF = dataclasses.replace(SOUND, logits=(9.2, 0.1))


def test_what_the_builder_saw_passes_on_every_class() -> None:
    try_out(FakeSteps(), 8, [SOUND], "x86-vnni")
    try_out(FakeSteps(), 8, [SOUND], "arm-neon")
    try_out(FakeSteps(), 8, [], "unknown")


def test_another_class_has_more_room_than_the_builders_own() -> None:
    try_out(FakeSteps(), 8, [OFF], "x86-avx2")
    with pytest.raises(
        GraphError, match=r"8-bit weights failed.*logit 9\.0000 here and 9\.2000.*0\.2000 apart with 0\.01"
    ):
        try_out(FakeSteps(), 8, [OFF], "x86-vnni")


def test_an_entry_of_this_class_counts_alone() -> None:
    elsewhere = dataclasses.replace(SOUND, logits=(90.0, 90.0), cpu_class="arm-i8mm")
    try_out(FakeSteps(), 8, [SOUND, elsewhere], "x86-vnni")
    with pytest.raises(GraphError, match="arm-i8mm"):
        try_out(FakeSteps(), 8, [SOUND, elsewhere], "x86-avx2")


def test_entries_of_the_other_precision_say_nothing() -> None:
    try_out(FakeSteps(), 4, [dataclasses.replace(OFF, logits=(0.0, 9.0))], "x86-vnni")


def test_logits_that_are_no_numbers_fail() -> None:
    with pytest.raises(GraphError, match="not finite"):
        try_out(FakeSteps(poison=1), 8, [], "x86-vnni")
    with pytest.raises(GraphError, match="failed their self-test"):
        try_out(FakeSteps(poison=PROMPT[5]), 8, [SOUND], "x86-vnni")


def test_a_session_that_breaks_is_no_session() -> None:
    with pytest.raises(GraphError, match="broken on order"):
        try_out(FakeSteps(break_at=1), 8, [], "x86-vnni")


class WrongDecode(FakeSteps):
    """Its prefill is sound and its decode is not, as when one of two kernels is broken."""

    def decode(self, tokens: Sequence[int], lengths: Sequence[int]) -> Logits:
        return super().decode(tokens, lengths) + np.float32(0.2)


def test_decoding_is_compared_as_well_as_prefilling() -> None:
    with pytest.raises(GraphError, match=r"0\.2000 apart with 0\.01"):
        try_out(WrongDecode(), 8, [SOUND], "x86-vnni")


def test_tokens_that_the_model_does_not_have_are_told() -> None:
    with pytest.raises(GraphError, match="past the model's"):
        try_out(FakeSteps(), 8, [dataclasses.replace(SOUND, token_ids=(VOCABULARY, 1))], "x86-vnni")


def test_a_context_too_short_for_the_prompt_is_no_failure() -> None:
    try_out(FakeSteps(capacity=8), 8, [dataclasses.replace(OFF, logits=(0.0, 0.0))], "x86-vnni")
