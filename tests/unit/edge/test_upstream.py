"""What a node learns of its upstream, from calls over a real socket and from what it is told."""

from __future__ import annotations

import time

import pytest

from edge.upstream import UpstreamSettings, UpstreamState
from router.events import BreakerChanged, LinkChanged
from router.network import NetworkSettings
from tests.fakes.inference import FakeInference
from tests.fakes.node import Events, cloud, soon
from wire.channel import bind, open_server
from wire.description import Description, ModelInfo
from wire.errors import WeirError
from wire.grpc_client import InferenceClient
from wire.grpc_server import add_inference
from wire.messages import Final, Tier, Usage
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


def answer(**timings_ms: float) -> Final:
    """Eleven tokens of the cloud."""
    return Final("stop", Usage(1, 11), Tier.CLOUD, timings_ms=timings_ms)


def described_in(known: UpstreamState, ms: float, padding: int = 100) -> None:
    known.on_exchange(Exchange("/weir.v1.Inference/Describe", 10, padding, ms, ms, "OK"))


def test_answers_tell_the_upstreams_own_speed_without_the_link() -> None:
    known, _ = state()
    described_in(known, 200.0)
    known.succeeded(answer(), 0.5, 1.5, 0)
    view = known.view(1)
    assert view.first_token_s == pytest.approx(0.3)
    assert view.per_token_s == pytest.approx(0.1)


def test_an_upstream_that_says_how_long_it_worked_tells_the_link_too() -> None:
    known, events = state()
    worked = answer(
        gateway_queue=20, host_queue=30, engine_tokenize=5, engine_queue=45, engine_prefill=100, engine_decode=900
    )
    known.succeeded(worked, 0.25, 1.25, 300)
    assert known.link().rtt_s == pytest.approx(0.05), "0.25 s less 0.2 s of work"
    assert known.view(1).first_token_s == pytest.approx(0.2)
    assert known.view(1).per_token_s == pytest.approx(0.1)
    assert [event.after for event in events.seen if isinstance(event, LinkChanged)] == ["partly_known"]
    described_in(known, 60.0)
    assert known.link().rtt_s == pytest.approx(0.05 + 0.01 / 8), "both kinds of sample are of one mean"


def test_on_a_narrow_link_a_payloads_time_is_not_taken_for_distance() -> None:
    """The forecast adds payload over rate to the round trip: what is in one must not be in the other."""
    known, _ = state()
    described_in(known, 100.0)
    described_in(known, 100.0 + 4096.0, padding=4096)  # 1000 bytes a second
    for _ in range(20):
        known.succeeded(answer(engine_prefill=200), 0.1 + 0.2 + 3.0, 5.0, 3000)
    link = known.link()
    assert link.bytes_per_s == pytest.approx(1000)
    assert link.rtt_s == pytest.approx(0.1)
    assert known.view(1).first_token_s == pytest.approx(0.2)


@pytest.mark.parametrize(("sent", "rtt_s"), [(2047, 0.4), (2048, None)])
def test_without_a_known_rate_only_a_small_payload_tells_the_distance(sent: int, rtt_s: float | None) -> None:
    known, _ = state()
    known.succeeded(answer(engine_prefill=100), 0.5, 1.5, sent)
    assert known.link().rtt_s == (None if rtt_s is None else pytest.approx(rtt_s))
    assert known.view(1).first_token_s == pytest.approx(0.1)


def test_work_that_took_longer_than_the_call_tells_nothing_of_the_link() -> None:
    """As of an answer that the upstream had kept from an earlier try."""
    known, _ = state()
    known.succeeded(answer(engine_prefill=900), 0.05, 0.06, 10)
    assert known.link().rtt_s is None


def test_an_upstream_that_passed_the_request_on_does_not_say_how_far_the_next_one_is() -> None:
    known, _ = state()
    described_in(known, 100.0)
    known.succeeded(answer(engine_prefill=50, upstream_first=350), 0.5, 1.5, 10)
    assert known.link().rtt_s == pytest.approx(0.1)
    assert known.view(1).first_token_s == pytest.approx(0.4)


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
