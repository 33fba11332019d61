"""The SDK against a real gRPC server: answers, provenance, streaming, errors, leaving, closing."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import weir
from tests.fakes.inference import FakeInference
from tests.unit.weir.serving import served
from wire.channel import Metadata
from wire.messages import Final, Tier, TierConstraint

EDGE_FINAL = Final(
    "stop",
    weir.Usage(5, 3),
    Tier.EDGE,
    release="r@1.0.0+abc",
    weight_digest="d4",
    precision=4,
    confidence=0.75,
    threshold=0.5,
    reason=weir.Reason.CONFIDENT,
    timings_ms={"decode": 3.0},
    edge_tokens_spent=9,
    node="edge-1",
)


async def until(condition: object, seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "condition never held"
        await asyncio.sleep(0.01)


async def test_an_answer_says_where_it_came_from() -> None:
    with served(FakeInference(final=EDGE_FINAL)) as target:
        async with weir.AsyncClient(target) as client:
            answer = await client.generate("hello")
    assert answer.text == "one two three"
    assert (answer.tier, answer.precision, answer.weight_digest) == (Tier.EDGE, 4, "d4")
    assert (answer.confidence, answer.threshold) == (0.75, 0.5)
    assert answer.timings_ms == {"decode": 3.0}
    assert answer.edge_tokens_spent == 9
    assert 0 < (answer.first_chunk_ms or 0) <= answer.total_ms


async def test_every_option_reaches_the_node() -> None:
    service = FakeInference()
    with served(service) as target:
        async with weir.AsyncClient(target) as client:
            await client.generate(
                [{"role": "system", "content": "be short"}, weir.Message("user", "hi")],
                model="m",
                max_tokens=7,
                temperature=0.5,
                top_p=0.9,
                top_k=3,
                stop=["\n"],
                seed=11,
                tier="edge_only",
                max_risk=0.25,
                commit_rule="prefix:4",
                session_id="s",
                tenant="t",
                site="here",
                request_class="c",
                value=2.0,
                priority=1,
                subject="who",
                idempotency_key="k",
                request_id="r",
                deadline_s=9.0,
            )
    (request,) = service.requests
    assert [(turn.role, turn.content) for turn in request.messages] == [("system", "be short"), ("user", "hi")]
    s = request.sampling
    assert (request.model, s.max_tokens, s.temperature, s.top_k, s.seed) == ("m", 7, 0.5, 3, 11)
    assert s.top_p == pytest.approx(0.9)
    assert request.stop == ("\n",)
    assert request.constraints.tier is TierConstraint.EDGE_ONLY
    assert (request.constraints.max_risk, request.constraints.commit_rule) == (0.25, "prefix:4")
    c = request.context
    assert (c.session_id, c.tenant, c.site, c.request_class, c.subject) == ("s", "t", "here", "c", "who")
    assert (c.value, c.priority, request.idempotency_key, request.request_id) == (2.0, 1, "k", "r")
    assert 8.0 < service.calls[0].deadline.remaining_s() < 9.1, "gRPC sends a timeout rounded up"


async def test_a_raw_prompt_stays_raw() -> None:
    service = FakeInference()
    with served(service) as target:
        async with weir.AsyncClient(target) as client:
            await client.generate("1, 2, 3,", raw=True)
    assert (service.requests[0].prompt, service.requests[0].messages) == ("1, 2, 3,", ())


async def test_a_stream_comes_in_pieces_and_ends_with_the_answer() -> None:
    with served(FakeInference(words=("a",) * 20, step_s=0.02)) as target:
        async with weir.AsyncClient(target) as client:
            stream = client.stream("hello")
            with pytest.raises(RuntimeError, match="not ended"):
                _ = stream.final
            pieces = [piece async for piece in stream]
    assert len(pieces) == 20
    assert stream.committed is not None
    assert stream.final.text == "a" * 20
    assert (stream.final.first_chunk_ms or 1e9) < stream.final.total_ms / 2


async def test_who_reads_pieces_gets_them_before_the_end_and_who_waits_leaves_it_to_the_node() -> None:
    service = FakeInference()
    with served(service) as target:
        async with weir.AsyncClient(target) as client:
            await client.generate("hello")
            async with client.stream("hello") as stream:
                assert [piece async for piece in stream]
            async with client.stream("hello", commit_rule="end") as stream:
                assert [piece async for piece in stream]
    assert [request.constraints.commit_rule for request in service.requests] == ["", "prefix:8", "end"]


async def test_leaving_a_stream_frees_the_node() -> None:
    service = FakeInference(hang=True)
    with served(service) as target:
        async with weir.AsyncClient(target) as client:
            async with client.stream("hello") as stream:
                await anext(stream)
                assert service.slots_used == 1
            await until(lambda: service.slots_used == 0)
    assert service.left == 1


@pytest.mark.parametrize("error", [weir.NotFound("no model x"), weir.Overloaded("full"), weir.InvalidRequest("bad")])
async def test_the_nodes_error_is_raised_as_itself(error: weir.WeirError) -> None:
    with served(FakeInference(fail_before=error)) as target:
        async with weir.AsyncClient(target) as client:
            with pytest.raises(type(error), match=error.message):
                await client.generate("hello")


async def test_bad_use_is_told_before_anything_is_sent() -> None:
    async with weir.AsyncClient("127.0.0.1:9") as client:
        with pytest.raises(weir.InvalidRequest, match="edge_only"):
            client.stream("x", tier="somewhere")  # type: ignore[arg-type]
        with pytest.raises(weir.InvalidRequest, match="role and content"):
            client.stream([{"role": "user"}])
        with pytest.raises(TypeError, match="max_token"):
            client.stream("x", max_token=3)  # type: ignore[call-arg]


async def test_nobody_there_is_unavailable_within_the_deadline() -> None:
    async with weir.AsyncClient("127.0.0.1:9") as client:
        with pytest.raises((weir.Unavailable, weir.DeadlineExceeded)):
            await client.generate("x", deadline_s=2.0)


class NeedsToken:
    def authenticate(self, method: str, metadata: Metadata) -> None:
        if ("authorization", "Bearer open") not in metadata:
            raise weir.Unauthenticated(f"{method} needs a token")


async def test_a_token_is_sent_with_every_call() -> None:
    with served(FakeInference(), NeedsToken()) as target:
        async with weir.AsyncClient(target, token="open") as client:
            assert (await client.describe()).node == "fake"
            assert (await client.generate("x")).text
        async with weir.AsyncClient(target) as client:
            with pytest.raises(weir.Unauthenticated):
                await client.describe()


def test_the_blocking_client_answers_streams_and_describes() -> None:
    with served(FakeInference(final=EDGE_FINAL)) as target, weir.Client(target) as client:
        answer = client.generate("hello")
        assert (answer.text, answer.edge_tokens_spent) == ("one two three", 9)
        stream = client.stream("hello")
        assert list(stream) == ["one", " two", " three"]
        assert stream.final.node == "edge-1"
        assert client.describe().models[0].name == "fake"


def test_blocking_clients_share_one_thread_and_leave_none() -> None:
    def ours() -> int:
        return sum(thread.name == "weir-client" for thread in threading.enumerate())

    with served(FakeInference()) as target:
        with weir.Client(target) as first, weir.Client(target) as second:
            assert ours() == 1
            assert first.generate("a").text == second.generate("b").text
        assert ours() == 0
        with pytest.raises(RuntimeError, match="closed"):
            first.generate("again")
        first.close()


def test_an_abandoned_blocking_stream_frees_the_node_when_the_client_closes() -> None:
    service = FakeInference(hang=True)
    with served(service) as target:
        with weir.Client(target) as client:
            stream = client.stream("hello")
            next(stream)
            assert service.slots_used == 1
        end = time.monotonic() + 5
        while service.slots_used and time.monotonic() < end:
            time.sleep(0.01)
        assert service.slots_used == 0


def test_threads_may_share_a_blocking_client() -> None:
    texts: list[str] = []
    with served(FakeInference(step_s=0.01)) as target, weir.Client(target) as client:
        threads = [threading.Thread(target=lambda: texts.append(client.generate("x").text)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert texts == ["one two three"] * 4
