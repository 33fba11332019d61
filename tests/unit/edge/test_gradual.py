"""Long JSON documents, written bit by bit: the same text as at once, and others have their turn meanwhile."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.http import chat, completions
from edge.http.choices import Answer
from edge.http.gradual import pieces, written
from edge.http.logprobs import (
    Entries,
    Offsets,
    chat_shape,
    completion_shape,
    whole_chat_shape,
    whole_completion_shape,
)
from tests.fakes.inference import FakeInference
from tests.unit.edge.test_http import BODY, serving
from wire.messages import Delta, Final, Tier, TokenLogprob, Usage

_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)
_BYTES = st.sampled_from([b"a", b"\xc3", b"\xbc", "é".encode(), b" b", b""])


@st.composite
def _deltas(draw: st.DrawFn) -> Delta:
    """A delta of any tokens, with or without bytes, alternatives and text."""
    count = draw(st.integers(0, 3))
    ids, logprobs = tuple(range(count)), tuple(-0.5 - at for at in range(count))
    told = tuple(draw(_BYTES) for _ in ids) if draw(st.booleans()) else ()
    tops = tuple(tuple(TokenLogprob(9, -2.0 - at, draw(_BYTES)) for at in range(draw(st.integers(0, 3)))) for _ in ids)
    return Delta(draw(st.sampled_from(["", "x", "ü y"])), ids, logprobs, None, told, tops)


def _whole(document: Any) -> Any:
    return json.loads("".join(pieces(document)))


@given(_PLAIN)
def test_a_document_is_written_as_it_would_be_at_once(document: Any) -> None:
    at_once = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    assert "".join(pieces(document)) == at_once
    assert "".join(pieces({"a": iter([document, document]), "b": [lambda: document]})) == (
        f'{{"a":[{at_once},{at_once}],"b":[{at_once}]}}'
    )


def test_what_is_no_json_is_refused() -> None:
    for bad, kind in ((float("nan"), ValueError), (float("inf"), ValueError), (object(), TypeError)):
        with pytest.raises(kind):
            "".join(pieces({"a": iter([bad])}))


@given(st.lists(_deltas(), max_size=5), st.integers(0, 3))
def test_log_probs_of_a_whole_answer_are_those_of_its_deltas(deltas: list[Delta], top: int) -> None:
    told, offsets = Entries(top), Offsets()
    taken = [(told.take(delta), delta.text) for delta in deltas]
    content = [entry for entries, _ in taken for entry in entries]
    begun = [offset for entries, text in taken for offset in offsets.take(entries, text)]
    assert _whole(whole_chat_shape(deltas, top)) == chat_shape(content)
    assert _whole(whole_completion_shape(deltas, top)) == completion_shape(content, begun)


async def _longest_turn(work: Any) -> float:
    """Seconds of this thread that the longest turn of `work` took. Another process may have the processor meanwhile."""
    task, longest = asyncio.create_task(work), 0.0
    while not task.done():
        begun = time.thread_time()
        await asyncio.sleep(0)
        longest = max(longest, time.thread_time() - begun)
    await task
    return longest


@pytest.fixture
def own_heap() -> Iterator[None]:
    """Collecting what other tests left behind would be the longest turn."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("own_heap")
@pytest.mark.parametrize("in_one", [False, True])
async def test_log_probs_of_eight_answers_leave_others_their_turn(in_one: bool) -> None:
    tops = tuple(TokenLogprob(at, -1.5 - at, b"abc") for at in range(20))
    delta = Delta("abc", (5,), (-1.25,), None, (b"abc",), (tops,))
    many = Delta("abc", (5,) * 480, (-1.25,) * 480, None, (b"abc",) * 480, (tops,) * 480)
    answer = Answer([many] if in_one else [delta] * 480, Final("length", Usage(1, 480), Tier.EDGE))
    shapes: list[Any] = [chat.Shape("x", 1, "m", 20), completions.Shape("x", 1, "m", ("",) * 8, 20)]
    for shape in shapes:
        assert await _longest_turn(written(shape.completion([answer] * 8, Usage(1, 1)))) < 0.02


async def test_a_long_answer_arrives_whole_and_with_its_length() -> None:
    service = FakeInference(words=("x" * 1000,) * 500)
    async with serving(service) as client:
        answer = await client.post("/v1/chat/completions", json={**BODY, "logprobs": True, "n": 2})
    assert answer.headers["content-length"] == str(len(answer.content))
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-weir-tier"] == "cloud"
    texts = [choice["message"]["content"] for choice in answer.json()["choices"]]
    assert texts == ["x" * 500_000] * 2
