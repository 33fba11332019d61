"""What a node learns of its upstream, from calls over a real socket and from what it is told."""

from __future__ import annotations

import time

from edge.upstream import UpstreamSettings, UpstreamState
from router.events import BreakerChanged, LinkChanged
from router.network import NetworkSettings
from tests.fakes.inference import FakeInference
from tests.fakes.node import Events, cloud, soon
from wire.channel import bind, open_server
from wire.errors import WeirError
from wire.grpc_client import InferenceClient
from wire.grpc_server import add_inference
from wire.messages import Description, Final, ModelInfo, Tier, Usage
from wire.service import Exchange


def state(**settings: object) -> tuple[UpstreamState, Events]:
    events = Events()
    return UpstreamState(UpstreamSettings("up:1", **settings), events, time.monotonic), events  # type: ignore[arg-type]


async def test_probes_over_a_socket_tell_the_link_and_its_end() -> None:
    known, events = state(network=NetworkSettings(down_after=2))
    server = open_server()
    add_inference(server, FakeInference(), 5.0)
    port = bind(server, "127.0.0.1:0")
    await server.start()
    client = InferenceClient(f"127.0.0.1:{port}", observer=known)
    assert known.link().rtt_s is None
    for _ in range(3):
        known.described(await client.describe(soon(), known.probing()))
    link = known.link()
    assert link.rtt_s is not None
    assert link.rtt_s < 1
    assert link.bytes_per_s is not None
    assert known.heard
    await server.stop(0)
    for _ in range(2):
        try:
            await client.describe(soon(1.0), known.probing())
        except WeirError:
            known.described(None)
    assert known.link().down
    assert not known.heard
    await client.close()
    conditions = [event.after for event in events.seen if isinstance(event, LinkChanged)]
    assert conditions[-1] == "down"
    assert "known" in conditions


def test_answers_tell_the_upstreams_own_speed_without_the_link() -> None:
    known, _ = state()
    known.on_exchange(Exchange("/weir.v1.Inference/Describe", 10, 100, 200.0, 200.0, "OK"))
    known.succeeded(Final("stop", Usage(1, 11), Tier.CLOUD), 0.5, 1.5)
    view = known.view(1)
    assert view.first_token_s is not None
    assert abs(view.first_token_s - 0.3) < 1e-6
    assert view.per_token_s is not None
    assert abs(view.per_token_s - 0.1) < 1e-6


def test_refusals_are_no_news_of_the_link() -> None:
    known, _ = state(network=NetworkSettings(down_after=1))
    known.on_exchange(Exchange("Generate", 10, 0, None, 5.0, "UNAVAILABLE"))
    assert not known.link().down
    known.on_exchange(Exchange("Describe", 10, 0, None, 5.0, "FAILED_PRECONDITION"))
    assert not known.link().down
    known.on_exchange(Exchange("Describe", 10, 0, None, 5.0, "UNAVAILABLE"))
    assert known.link().down


def test_readiness_is_forgotten_with_the_upstream_and_the_model_is_not() -> None:
    known, _ = state()
    assert known.view(1).capabilities is None
    known.described(Description("up", Tier.CLOUD, models=(cloud().model,), ready=False))
    assert not known.view(1).admits
    known.described(None)
    assert known.view(1).admits
    assert known.view(1).capabilities == frozenset(cloud().model.capabilities)


def test_the_models_name_is_translated() -> None:
    known, _ = state()
    assert known.forward_as("m") == ""
    known.described(Description("up", Tier.CLOUD, models=(ModelInfo("a"), ModelInfo("m"))))
    assert known.forward_as("m") == "m"
    assert known.forward_as("other") == ""
    pinned, _ = state(model="a")
    assert pinned.forward_as("m") == "a"
    pinned.described(Description("up", Tier.CLOUD, models=(ModelInfo("b"),)))
    assert pinned.model("m") is None


def test_the_breaker_tells_when_it_changes() -> None:
    known, events = state()
    for _ in range(3):
        known.started()
        known.failed()
    assert not known.view(1).admits
    assert [event.after for event in events.seen if isinstance(event, BreakerChanged)] == ["open"]
    other, events = state()
    for _ in range(5):
        other.started()
        other.abandoned()
    assert other.view(1).admits
    assert events.seen == []
