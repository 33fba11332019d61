"""The Inference service over a real socket: answers, errors, cancellation, bytes that are no message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from tests.fakes.inference import FakeInference
from wire.channel import bind, open_server
from wire.deadline import Deadline
from wire.errors import DeadlineExceeded, InvalidRequest, NotFound, Overloaded, TooLarge
from wire.grpc_client import InferenceClient
from wire.grpc_server import HealthReporter, add_inference, add_unserved_fleet
from wire.messages import Committed, Delta, Final, GenerateRequest, Message, Tier
from wire.service import Call, Exchange

REQUEST = GenerateRequest(model="m", messages=(Message("user", "hi"),))


class Recorder:
    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []

    def on_exchange(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)


@asynccontextmanager
async def serving(
    service: FakeInference, max_deadline_s: float = 60.0
) -> AsyncIterator[tuple[InferenceClient, Recorder]]:
    server = open_server()
    add_inference(server, service, 30.0, max_deadline_s=max_deadline_s)
    add_unserved_fleet(server)
    HealthReporter(server)
    port = bind(server, "127.0.0.1:0")
    await server.start()
    recorder = Recorder()
    client = InferenceClient(f"127.0.0.1:{port}", observer=recorder)
    try:
        yield client, recorder
    finally:
        await client.close()
        await server.stop(0)


def soon(seconds: float = 10.0) -> Call:
    return Call(Deadline.after(seconds))


async def test_an_answer_arrives_as_events_and_is_measured() -> None:
    async with serving(FakeInference()) as (client, recorder):
        events = [event async for event in client.generate(REQUEST, soon())]
    assert isinstance(events[0], Committed)
    assert [event.text for event in events if isinstance(event, Delta)] == ["one", " two", " three"]
    assert isinstance(events[-1], Final)
    assert events[-1].tier is Tier.CLOUD
    (exchange,) = recorder.exchanges
    assert exchange.code == "OK"
    assert exchange.bytes_received > 0 < exchange.bytes_sent


@pytest.mark.parametrize("error", [NotFound("no model x"), InvalidRequest("bad"), Overloaded("full"), TooLarge("big")])
async def test_the_client_raises_what_the_server_raised(error: Exception) -> None:
    service = FakeInference(fail_before=error)  # type: ignore[arg-type]
    async with serving(service) as (client, _):
        with pytest.raises(type(error), match=str(error)):
            [event async for event in client.generate(REQUEST, soon())]


async def test_leaving_early_frees_the_slot() -> None:
    service = FakeInference(hang=True)
    async with serving(service) as (client, recorder):
        events = client.generate(REQUEST, soon())
        async for event in events:
            if isinstance(event, Delta):
                break
        assert service.slots_used == 1
        await events.aclose()
        await _until(lambda: service.slots_used == 0)
        assert recorder.exchanges[-1].code == "CANCELLED"
    assert service.left == 1


async def test_a_vanished_task_frees_the_slot() -> None:
    service = FakeInference(hang=True)

    async def consume(client: InferenceClient) -> None:
        async for _ in client.generate(REQUEST, soon()):
            pass

    async with serving(service) as (client, _):
        task = asyncio.create_task(consume(client))
        await _until(lambda: service.slots_used == 1)
        task.cancel()
        await _until(lambda: service.slots_used == 0)


async def test_the_deadline_travels_and_ends_the_call() -> None:
    service = FakeInference(hang=True)
    async with serving(service) as (client, _):
        with pytest.raises(DeadlineExceeded, match="allow more time"):
            [event async for event in client.generate(REQUEST, soon(0.3))]
        assert service.calls[0].deadline.remaining_s() < 0.3
        await _until(lambda: service.slots_used == 0)


@pytest.mark.parametrize(("asked", "given"), [(4000.0, 50.0), (20.0, 20.0)])
async def test_nobody_is_given_more_time_than_the_server_allows(asked: float, given: float) -> None:
    service = FakeInference()
    async with serving(service, max_deadline_s=50.0) as (client, _):
        [event async for event in client.generate(REQUEST, soon(asked))]
    # Between ten and a hundred seconds gRPC sends a timeout in tenths, rounded up; our own limit is exact.
    rounding_s = 0.1 if given == asked else 0.0
    assert given - 10 < service.calls[0].deadline.remaining_s() <= given + rounding_s


@pytest.mark.parametrize(
    ("given", "arrives"),
    [
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", True),
        ("", False),
        ("garbage", False),
        ("a\tb", False),
        ("\xff\xfe", False),
        ("x" * 30_000, False),
    ],
)
async def test_a_traceparent_travels_and_what_is_none_does_no_harm(given: str, arrives: bool) -> None:
    service = FakeInference()
    async with serving(service) as (client, _):
        events = [event async for event in client.generate(REQUEST, Call(Deadline.after(5), given))]
    assert isinstance(events[-1], Final)
    assert service.calls[0].traceparent == (given if arrives else "")


async def test_a_fault_with_a_long_message_arrives_as_what_it_is() -> None:
    service = FakeInference(fail_before=InvalidRequest("\U0001f30a" * 100_000))
    async with serving(service) as (client, _):
        with pytest.raises(InvalidRequest):
            [event async for event in client.generate(REQUEST, soon())]


async def test_bytes_that_are_no_message_are_the_callers_fault() -> None:
    async with serving(FakeInference()) as (client, _), grpc.aio.insecure_channel(client.target) as channel:
        invalid_utf8 = b"\x0a\x02\xff\xfe"  # field 1 (model), two bytes that are not UTF-8
        for data in (invalid_utf8, b"\xff\xff\xff"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                [x async for x in channel.unary_stream("/weir.v1.Inference/Generate")(data)]
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_message_over_the_limit_is_too_large() -> None:
    big = GenerateRequest(model="m", prompt="x" * (10 << 20))
    async with serving(FakeInference()) as (client, _):
        with pytest.raises(TooLarge):
            [event async for event in client.generate(big, soon())]
        assert [event async for event in client.generate(REQUEST, soon())]


@pytest.mark.parametrize("method", ["/weir.v1.Inference/Classify", "/weir.v1.Inference/Score", "/weir.v1.Fleet/Enroll"])
async def test_later_methods_answer_unimplemented_by_name(method: str) -> None:
    async with serving(FakeInference()) as (client, _), grpc.aio.insecure_channel(client.target) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(method)(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert method.rsplit("/", 1)[1] in (caught.value.details() or "")


async def _until(condition: object, seconds: float = 5.0) -> None:
    deadline = Deadline.after(seconds)
    while not condition():  # type: ignore[operator]
        assert not deadline.expired, "condition never held"
        await asyncio.sleep(0.01)


async def test_a_flood_of_empty_messages_is_refused_before_it_costs_anything() -> None:
    service = FakeInference()
    async with serving(service) as (client, _), grpc.aio.insecure_channel(client.target) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [x async for x in channel.unary_stream("/weir.v1.Inference/Generate")(b"\x12\x00" * 200_000)]
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "200000" in (caught.value.details() or "")
    assert not service.requests


async def test_a_constraint_nobody_knows_is_refused_and_not_read_as_auto() -> None:
    service = FakeInference()
    unknown_tier = b"\x12\x04\x12\x02hi" + b"\x3a\x02\x08\x63"  # one message; constraints {tier: 99}
    async with serving(service) as (client, _), grpc.aio.insecure_channel(client.target) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [x async for x in channel.unary_stream("/weir.v1.Inference/Generate")(unknown_tier)]
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "99" in (caught.value.details() or "")
    assert not service.requests
