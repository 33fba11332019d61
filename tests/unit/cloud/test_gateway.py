"""The gateway over fake engine hosts: who is asked, who is asked next, what is passed on and added."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from cloud.config import GatewayConfig
from cloud.gateway.active import ActiveReleases
from cloud.gateway.pool import EngineLink, EnginePool
from cloud.gateway.service import GatewayService
from tests.fakes.engine import FakeEngineControl
from tests.fakes.inference import FakeInference
from wire.deadline import Deadline
from wire.description import ModelInfo
from wire.errors import (
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    Overloaded,
    PreconditionFailed,
    Unavailable,
    WeirError,
)
from wire.messages import (
    Committed,
    Constraints,
    Delta,
    Final,
    GenerateEvent,
    GenerateRequest,
    Message,
    Tier,
    TierConstraint,
)
from wire.service import Call

ASK = GenerateRequest(model="big", messages=(Message("user", "hi"),))
BIG = ModelInfo("big", "big@1.0.0+1")
DOWN = Unavailable("its ranks are gone")


def soon(seconds: float = 5.0) -> Call:
    return Call(Deadline.after(seconds))


class Cloud:
    """A gateway over fakes, probed by hand."""

    def __init__(self, *hosts: FakeInference, clock: list[float] | None = None, **settings: object) -> None:
        self.hosts = hosts
        self.controls = [FakeEngineControl() for _ in hosts]
        self.clock = clock if clock is not None else [0.0]
        self.links = [
            EngineLink(f"host{index}", host, control)
            for index, (host, control) in enumerate(zip(hosts, self.controls, strict=True))
        ]
        self.pool = EnginePool(self.links, 0.5, 1.0, 5.0, lambda: self.clock[0])
        config = GatewayConfig.model_validate({"node": "gw", **settings})
        self.gateway = GatewayService(config, self.pool, ActiveReleases(None))

    async def probe(self) -> None:
        for link in self.links:
            await link.probe(1.0, lambda: self.clock[0])

    async def ask(self, request: GenerateRequest = ASK, call: Call | None = None) -> list[GenerateEvent]:
        return [event async for event in self.gateway.generate(request, call or soon())]


def host(**settings: object) -> FakeInference:
    return FakeInference(**{"model": BIG, **settings})  # type: ignore[arg-type]


@asynccontextmanager
async def busy(cloud: Cloud, request: GenerateRequest = ASK) -> AsyncIterator[None]:
    """One request that has begun and does not end by itself."""
    events = cloud.gateway.generate(request, soon())
    await anext(events)
    try:
        yield
    finally:
        await events.aclose()


async def test_an_answer_is_passed_through_with_the_gateways_share_added() -> None:
    cloud = Cloud(host())
    await cloud.probe()
    committed, *deltas, final = await cloud.ask()
    assert isinstance(committed, Committed)
    assert committed.tier is Tier.CLOUD
    assert committed.request_id
    assert "".join(delta.text for delta in deltas if isinstance(delta, Delta)) == "one two three"
    assert isinstance(final, Final)
    assert final.tier is Tier.CLOUD
    assert {"gateway_queue", "gateway_total"} <= set(final.timings_ms)
    (passed,) = cloud.hosts[0].requests
    assert passed.hops == 1
    assert passed.request_id == committed.request_id


async def test_the_least_loaded_host_is_asked() -> None:
    cloud = Cloud(host(), host(), host())
    cloud.controls[0].active, cloud.controls[1].active, cloud.controls[2].active = 3, 1, 2
    await cloud.probe()
    await cloud.ask()
    assert [len(each.requests) for each in cloud.hosts] == [0, 1, 0]


async def test_what_this_gateway_sent_counts_before_a_probe_says_so() -> None:
    cloud = Cloud(host(hang=True), host())
    await cloud.probe()
    async with busy(cloud):
        await cloud.ask()
    assert [len(each.requests) for each in cloud.hosts] == [1, 1]
    assert cloud.hosts[0].slots_used == 0


async def test_a_second_host_answers_when_the_first_fails_before_its_first_event() -> None:
    cloud = Cloud(host(), host())
    await cloud.probe()
    cloud.hosts[0].fail_before = DOWN
    events = await cloud.ask()
    assert isinstance(events[-1], Final)
    assert not cloud.pool.usable(cloud.links[0])
    await cloud.ask()
    assert [len(each.requests) for each in cloud.hosts] == [1, 2]


async def test_only_one_other_host_is_tried() -> None:
    cloud = Cloud(host(), host(), host())
    await cloud.probe()
    for each in cloud.hosts:
        each.fail_before = DOWN
    with pytest.raises(Unavailable):
        await cloud.ask()
    assert sum(len(each.requests) for each in cloud.hosts) == 2


async def test_nothing_is_tried_again_once_the_caller_has_seen_something() -> None:
    cloud = Cloud(host(fail_after=(1, DOWN)), host())
    await cloud.probe()
    seen: list[GenerateEvent] = []
    with pytest.raises(Unavailable):
        async for event in cloud.gateway.generate(ASK, soon()):
            seen.append(event)  # noqa: PERF401 - what was seen before the error counts
    assert [type(event) for event in seen] == [Committed, Delta]
    assert cloud.hosts[1].requests == []


async def test_a_fault_of_the_request_is_not_tried_elsewhere() -> None:
    cloud = Cloud(host(), host())
    await cloud.probe()
    cloud.hosts[0].fail_before = InvalidRequest("too long")
    with pytest.raises(InvalidRequest):
        await cloud.ask()
    assert cloud.hosts[1].requests == []
    assert cloud.pool.usable(cloud.links[0])


async def test_a_full_host_is_left_for_another_but_not_marked_as_down() -> None:
    cloud = Cloud(host(), host())
    await cloud.probe()
    cloud.hosts[0].fail_before = Overloaded("full")
    await cloud.ask()
    assert cloud.pool.usable(cloud.links[0])


async def test_a_host_not_heard_of_for_too_long_takes_no_requests() -> None:
    cloud = Cloud(host())
    await cloud.probe()
    cloud.clock[0] = 6.0
    with pytest.raises(Unavailable, match="host0 was not heard of lately"):
        await cloud.ask()
    await cloud.probe()
    await cloud.ask()


async def test_a_host_that_does_not_answer_is_named_with_its_reason() -> None:
    cloud = Cloud(host())
    await cloud.probe()
    cloud.controls[0].fail = Unavailable("connection refused")
    await cloud.probe()
    with pytest.raises(Unavailable, match="host0 does not answer: connection refused"):
        await cloud.ask()
    description = await cloud.gateway.describe(soon())
    assert not description.ready
    assert "connection refused" in description.not_ready_reason
    assert [info.name for info in description.models] == ["big"]


async def test_the_queue_is_bounded() -> None:
    cloud = Cloud(host(hang=True), max_concurrent=1, max_queue=0)
    await cloud.probe()
    async with busy(cloud):
        with pytest.raises(Overloaded, match="gateway gw is full"):
            await cloud.ask()


async def test_waiting_ends_with_the_deadline() -> None:
    cloud = Cloud(host(hang=True), max_concurrent=1, max_queue=5)
    await cloud.probe()
    async with busy(cloud):
        with pytest.raises(DeadlineExceeded):
            await cloud.ask(call=soon(0.05))
    with pytest.raises(DeadlineExceeded):
        await cloud.ask(call=soon(-1.0))


async def test_leaving_frees_the_host() -> None:
    cloud = Cloud(host(hang=True))
    await cloud.probe()
    async with busy(cloud):
        assert cloud.hosts[0].slots_used == 1
    assert (cloud.hosts[0].slots_used, cloud.hosts[0].left, cloud.links[0].in_flight) == (0, 1, 0)


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (replace(ASK, model="small"), NotFound, "no model 'small' here; served are: big"),
        (replace(ASK, hops=4), PreconditionFailed, "cannot be passed on"),
        (replace(ASK, hops=5), PreconditionFailed, "passed 5 nodes"),
        (replace(ASK, messages=()), InvalidRequest, "messages is empty"),
        (replace(ASK, constraints=Constraints(TierConstraint.EDGE_ONLY)), PreconditionFailed, "edge_only"),
    ],
)
async def test_bad_requests_cost_no_host(request_: GenerateRequest, error: type[WeirError], message: str) -> None:
    cloud = Cloud(host())
    await cloud.probe()
    with pytest.raises(error, match=message):
        await cloud.ask(request_)
    assert cloud.hosts[0].requests == []


async def test_an_escalation_gets_the_default_model_whatever_its_edge_calls_its_own() -> None:
    cloud = Cloud(host())
    await cloud.probe()
    await cloud.ask(replace(ASK, model="small-edge-model", hops=1))
    assert cloud.hosts[0].requests[0].model == "big"


async def test_with_several_models_the_default_must_be_named() -> None:
    other = host(model=ModelInfo("other", "other@1.0.0+2"))
    undecided = Cloud(host(), other)
    await undecided.probe()
    with pytest.raises(InvalidRequest, match="name a model; served are: big, other"):
        await undecided.ask(replace(ASK, model=""))
    with pytest.raises(NotFound, match="no default_model"):
        await undecided.ask(replace(ASK, model="small", hops=1))
    decided = Cloud(host(), other, default_model="other")
    await decided.probe()
    await decided.ask(replace(ASK, model="small", hops=1))
    assert other.requests[-1].model == "other"


async def test_before_any_host_answered_the_gateway_says_so() -> None:
    with pytest.raises(Unavailable, match="no engine host has answered yet"):
        await Cloud(host()).ask()


async def test_describe_tells_models_limits_and_readiness() -> None:
    cloud = Cloud(host(), host(), max_concurrent=7, max_queue=9)
    await cloud.probe()
    description = await cloud.gateway.describe(soon(), probe_bytes=10)
    assert description.ready
    assert description.models == (BIG,)
    assert (description.limits.max_concurrent, description.limits.max_queue) == (7, 9)
    assert len(description.padding) == 10
    cloud.gateway.drain()
    assert not (await cloud.gateway.describe(soon())).ready
    with pytest.raises(Unavailable, match="shutting down"):
        await cloud.ask()


async def test_one_key_is_computed_once_however_often_it_is_asked() -> None:
    cloud = Cloud(host(step_s=0.01))
    await cloud.probe()
    keyed = replace(ASK, idempotency_key="k")
    first, second = await asyncio.gather(
        cloud.ask(replace(keyed, request_id="a")), cloud.ask(replace(keyed, request_id="b"))
    )
    third = await cloud.ask(replace(keyed, request_id="c"))
    assert len(cloud.hosts[0].requests) == 1
    texts = ["".join(event.text for event in events if isinstance(event, Delta)) for events in (first, second, third)]
    assert texts == ["one two three"] * 3
    finals = [events[-1] for events in (first, second, third)]
    assert [final.request_id for final in finals if isinstance(final, Final)] == ["a", "b", "c"]
