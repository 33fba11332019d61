"""Generate by frames: answers, errors by their class, a front that leaves, an engine that goes, deadlines, reuse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from tests.fakes.inference import FakeInference
from wire.channel import bind, open_server
from wire.deadline import Deadline
from wire.errors import ContextTooLong, DeadlineExceeded, Overloaded, Unavailable, WeirError
from wire.grpc_server import add_inference
from wire.local_stream import EngineClient, StreamServer, stream_path
from wire.messages import Committed, Delta, Final, GenerateEvent, GenerateRequest, Message
from wire.service import Call

REQUEST = GenerateRequest(model="m", messages=(Message("user", "hi"),), request_id="r")


def soon(seconds: float = 10.0) -> Call:
    return Call(Deadline.after(seconds), "00-" + "a" * 32 + "-" + "b" * 16 + "-01")


@asynccontextmanager
async def serving(service: FakeInference, folder: Path) -> AsyncIterator[tuple[EngineClient, StreamServer]]:
    socket = folder / "engine.sock"
    server, client = StreamServer(service, stream_path(socket)), EngineClient(socket)
    await server.start()
    try:
        yield client, server
    finally:
        await client.close()
        await server.stop(0)


async def events_of(client: EngineClient, call: Call | None = None) -> list[GenerateEvent]:
    return [event async for event in client.generate(REQUEST, call or soon())]


async def settled(service: FakeInference) -> None:
    for _ in range(200):
        if service.slots_used == 0:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the slot was not freed")


async def test_an_answer_arrives_whole_and_the_request_as_it_was_sent(tmp_path: Path) -> None:
    service = FakeInference()
    async with serving(service, tmp_path) as (client, _):
        events = await events_of(client, call := soon())
    assert isinstance(events[0], Committed) and isinstance(events[-1], Final)
    assert [event.text for event in events if isinstance(event, Delta)] == ["one", " two", " three"]
    assert service.requests == [REQUEST]
    assert service.calls[0].traceparent == call.traceparent
    assert abs(service.calls[0].deadline.remaining_s() - call.deadline.remaining_s()) < 1


async def test_connections_are_used_again_one_request_at_a_time(tmp_path: Path) -> None:
    service = FakeInference(step_s=0.002)
    async with serving(service, tmp_path) as (client, server):
        for _ in range(20):
            assert len(await events_of(client)) == 5
        assert len(server._connections) == 1
        answers = await asyncio.gather(*(events_of(client) for _ in range(30)))
        assert all(len(answer) == 5 for answer in answers)
        for _ in range(3):  # and those that were made for thirty at once serve on
            await asyncio.gather(*(events_of(client) for _ in range(30)))
        assert len(server._connections) <= 30
    assert service.slots_used == 0


@pytest.mark.parametrize("error", [ContextTooLong("too long: é"), Overloaded("full"), WeirError("odd\nlines")])
async def test_errors_keep_their_class_and_words(error: WeirError, tmp_path: Path) -> None:
    service = FakeInference(fail_after=(1, error))
    async with serving(service, tmp_path) as (client, _):
        with pytest.raises(type(error)) as caught:
            await events_of(client)
        assert (type(caught.value), caught.value.message) == (type(error), error.message)
        service.fail_after = None
        assert len(await events_of(client)) == 5


async def test_a_fault_inside_is_told_without_its_text(tmp_path: Path) -> None:
    service = FakeInference(fail_before=ValueError("secret"))  # type: ignore[arg-type]
    async with serving(service, tmp_path) as (client, _):
        with pytest.raises(WeirError, match="internal fault"):
            await events_of(client)


async def test_a_front_that_leaves_frees_the_slot_at_once(tmp_path: Path) -> None:
    service = FakeInference(hang=True)
    async with serving(service, tmp_path) as (client, _):
        async with aclosing(client.generate(REQUEST, soon())) as events:  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, Delta):
                    break
        await settled(service)
    assert service.left == 1


async def test_an_engine_that_goes_is_unavailable(tmp_path: Path) -> None:
    service = FakeInference(hang=True)
    async with serving(service, tmp_path) as (client, server):
        answer = asyncio.create_task(events_of(client))
        while not service.slots_used:
            await asyncio.sleep(0.01)
        await server.stop(0)
        with pytest.raises(Unavailable, match="engine's process"):
            await answer
        with pytest.raises(Unavailable):
            await events_of(client)
    assert service.slots_used == 0


async def test_an_engine_that_takes_no_frames_is_asked_by_grpc(tmp_path: Path) -> None:
    server = open_server()
    add_inference(server, FakeInference(), 30.0)
    bind(server, f"unix:{tmp_path / 'engine.sock'}")
    await server.start()
    client = EngineClient(tmp_path / "engine.sock")
    assert len(await events_of(client)) == 5
    await client.close()
    await server.stop(0)


async def test_a_new_engine_at_the_same_place_is_found(tmp_path: Path) -> None:
    async with serving(FakeInference(), tmp_path) as (client, server):
        await events_of(client)
        await server.stop(0)
        await asyncio.sleep(0.05)
        again = StreamServer(FakeInference(words=("new",)), stream_path(tmp_path / "engine.sock"))
        await again.start()
        assert [event.text for event in await events_of(client) if isinstance(event, Delta)] == ["new"]
        await again.stop(0)


async def test_an_engine_that_hangs_holds_nobody_past_the_deadline(tmp_path: Path) -> None:
    service = FakeInference(hang=True)
    async with serving(service, tmp_path) as (client, _):
        with pytest.raises(DeadlineExceeded):
            await events_of(client, soon(0.2))
        await settled(service)


async def test_running_requests_may_finish_when_the_engine_stops(tmp_path: Path) -> None:
    service = FakeInference(step_s=0.1)
    async with serving(service, tmp_path) as (client, server):
        answer = asyncio.create_task(events_of(client))
        while not service.slots_used:
            await asyncio.sleep(0.01)
        await server.stop(5)
        assert len(await answer) == 5


async def test_long_prompts_and_long_pieces_pass(tmp_path: Path) -> None:
    service = FakeInference(words=("x" * 1_000_000, "y" * 300_000))
    request = GenerateRequest(prompt="p" * 1_000_000)
    async with serving(service, tmp_path) as (client, _):
        texts = [event.text async for event in client.generate(request, soon()) if isinstance(event, Delta)]
    assert [len(text) for text in texts] == [1_000_000, 300_000]
    assert len(service.requests[0].prompt) == 1_000_000


async def test_what_is_no_request_costs_nobody_else(tmp_path: Path) -> None:
    async with serving(FakeInference(), tmp_path) as (client, _):
        reader, writer = await asyncio.open_unix_connection(stream_path(tmp_path / "engine.sock"))
        writer.write(b"\xff" * 64)
        assert await reader.read() == b""  # longer than any frame may be: cut off
        writer.close()
        reader, writer = await asyncio.open_unix_connection(stream_path(tmp_path / "engine.sock"))
        writer.write(b"\0\0\0\x02Qab")
        assert b"internal fault" in await reader.read(200)
        writer.close()
        assert len(await events_of(client)) == 5
