"""Device, edge and cloud as processes: who answered, what it took, one deadline, leaving; and nodes in a circle."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.inference import FakeInference
from tests.integration.edge_process import EdgeProcess, calibrated_release, edge_process, until
from wire.channel import bind, open_server
from wire.deadline import Deadline
from wire.description import ModelInfo
from wire.engine import EngineStatus
from wire.grpc_client import EngineControlClient
from wire.grpc_server import add_inference
from wire.service import Call

SURE, UNSURE = 5.0, -1.0
MESSAGES = [{"role": "user", "content": "Where is my parcel?"}]
QUICK = {"probe_interval_s": 0.2, "rehearse": False}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture(scope="module")
def releases(tiny_release: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    root = tmp_path_factory.mktemp("releases")
    sure = calibrated_release(tiny_release, root / "sure", "1.0.0", SURE)
    unsure = calibrated_release(tiny_release, root / "unsure", "0.9.0", UNSURE)
    return {"sure": (root / "sure", sure.id), "unsure": (root / "unsure", unsure.id)}


@dataclass
class Tiers:
    """Two devices below one node below a cloud: one device dials the node by gRPC, one by OpenAI's HTTP."""

    cloud: FakeInference
    middle: EdgeProcess
    devices: dict[str, EdgeProcess]


async def together(starting: list[AbstractContextManager[EdgeProcess]], stack: ExitStack) -> list[EdgeProcess]:
    """Nodes that start side by side; `stack` ends them."""
    return list(await asyncio.gather(*(asyncio.to_thread(stack.enter_context, node) for node in starting)))


@asynccontextmanager
async def tiers(releases: dict[str, tuple[Path, str]]) -> AsyncIterator[Tiers]:
    cloud = FakeInference(model=ModelInfo("big", "big@1.0.0+0", capabilities=("stream", "sample")))
    server = open_server()
    add_inference(server, cloud, 30.0)
    above = f"127.0.0.1:{bind(server, '127.0.0.1:0')}"
    await server.start()
    stack = ExitStack()
    try:
        enter = stack.enter_context
        middle = await asyncio.to_thread(
            enter, edge_process(releases["sure"][0], node="middle", upstream=above, **QUICK)
        )
        upstreams = {"grpc": middle.grpc, "http": f"{middle.http}/v1"}
        starting = [
            edge_process(releases["unsure"][0], node=f"device-{kind}", upstream=upstream, **QUICK)
            for kind, upstream in upstreams.items()
        ]
        devices = dict(zip(upstreams, await together(starting, stack), strict=True))
        for device in devices.values():
            # Until it has heard what stands above it.
            await asyncio.to_thread(until, lambda d=device: ask(d)["node"] == "middle", 30, device.log.read_text)
        yield Tiers(cloud, middle, devices)
    finally:
        await asyncio.to_thread(stack.close)
        await server.stop(0)


def post(node: EdgeProcess, **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 8, **fields}
    return httpx.post(f"{node.http}/v1/chat/completions", json=body, timeout=30)


def ask(node: EdgeProcess, **fields: Any) -> dict[str, Any]:
    answer = post(node, **fields)
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["weir"])


def working(node: EdgeProcess) -> EngineStatus:
    """What the node's engine is doing."""

    async def look() -> EngineStatus:
        control = EngineControlClient(f"unix:{node.run_dir}/engine.sock")
        try:
            return await control.status(Call(Deadline.after(5)))
        finally:
            await control.close()

    return asyncio.run(look())


async def test_device_edge_and_cloud(releases: dict[str, tuple[Path, str]]) -> None:
    async with tiers(releases) as up:
        for device in up.devices.values():
            await asyncio.to_thread(the_middle_answers, device, releases["sure"][1])
            await asyncio.to_thread(the_cloud_answers, device, up.cloud)
            await asyncio.to_thread(leaving_frees_the_middle, device, up.middle)
            await leaving_frees_the_cloud(device, up.cloud)
            await asyncio.to_thread(a_deadline_is_shared, device, up.cloud)


def the_middle_answers(device: EdgeProcess, release: str) -> None:
    answer = ask(device)
    assert (answer["tier"], answer["node"], answer["release"], answer["hops"]) == ("edge", "middle", release, 1)
    assert (answer["reason"], answer["degraded"]) == ("confident", False)
    assert answer["confidence"] >= answer["threshold"]
    timings = answer["timings_ms"]
    assert timings["total"] >= timings["upstream_total"] >= timings["upstream.total"] >= timings["upstream.edge_total"]
    assert timings["edge_total"] > 0
    streamed = post(device, stream=True)
    assert streamed.headers["x-weir-tier"] == "edge"
    assert streamed.headers["x-weir-release"] == release
    assert '"node":"middle"' in streamed.text
    assert streamed.text.endswith("data: [DONE]\n\n")


def the_cloud_answers(device: EdgeProcess, cloud: FakeInference) -> None:
    answer = ask(device, weir={"constraint": "cloud_only"})
    assert (answer["tier"], answer["release"], answer["hops"]) == ("cloud", "big@1.0.0+0", 2)
    assert answer["reason"] == "cloud_only"
    assert cloud.requests[-1].hops == 2
    assert "upstream.upstream_total" in answer["timings_ms"]


def leaving_frees_the_middle(device: EdgeProcess, middle: EdgeProcess) -> None:
    """A client leaves at the first word of a long answer of the middle's: the rest of it is never decoded."""
    body, whole = a_long_answer(device)
    before = working(middle).decode_steps
    engine = middle.child("engine")
    with httpx.stream(
        "POST", f"{device.http}/v1/chat/completions", json={**body, "stream": True}, timeout=30
    ) as answer:
        assert '"role"' in next(answer.iter_lines())
        engine.suspend()  # what is decoded meanwhile would be the test's own slowness
    time.sleep(0.3)
    engine.resume()
    until(lambda: working(middle).active == 0, 2.0)
    steps = working(middle).decode_steps
    assert steps - before < 0.8 * whole
    time.sleep(0.2)
    assert working(middle).decode_steps == steps


def a_long_answer(device: EdgeProcess) -> tuple[dict[str, Any], int]:
    """A request that the middle answers at length, since it may not write the end, and the tokens of that."""
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 400, "logit_bias": {"2": -100}}
    usage = httpx.post(f"{device.http}/v1/chat/completions", json=body, timeout=60).json()["usage"]
    assert usage["completion_tokens"] == 400
    return body, 400


async def leaving_frees_the_cloud(device: EdgeProcess, cloud: FakeInference) -> None:
    cloud.hang = True
    body = {"model": "tiny", "messages": MESSAGES, "stream": True, "weir": {"constraint": "cloud_only"}}
    url = f"{device.http}/v1/chat/completions"
    async with httpx.AsyncClient(timeout=30) as client, client.stream("POST", url, json=body) as answer:
        async for line in answer.aiter_lines():
            if "three" in line:
                break
        assert cloud.slots_used == 1
    began = time.monotonic()
    while cloud.slots_used:
        assert time.monotonic() - began < 1.0
        await asyncio.sleep(0.005)
    cloud.hang = False


def a_deadline_is_shared(device: EdgeProcess, cloud: FakeInference) -> None:
    cloud.hang = True
    began = time.monotonic()
    answer = post(device, weir={"constraint": "cloud_only", "deadline_ms": 1500})
    assert answer.status_code == 504
    assert 1.2 < time.monotonic() - began < 2.5
    # As the cloud saw it on its own clock: what was left when the request came there.
    assert cloud.calls[-1].deadline.at <= began + 1.6
    cloud.hang = False
    until(lambda: cloud.slots_used == 0, 2)


# --- circles


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def circle(folder: Path, kind: str) -> Iterator[list[EdgeProcess]]:
    """Nodes of which each has the next as its upstream and the last the first; `kind` is how they are dialled."""
    count, over_http = (2, False) if kind == "two nodes" else (1, kind == "http")
    ports = [free_port() for _ in range(count)]
    own = "http_address" if over_http else "grpc_address"
    with ExitStack() as stack:
        starting = []
        for place in range(count):
            above = f"127.0.0.1:{ports[(place + 1) % count]}"
            settings = {own: f"127.0.0.1:{ports[place]}", "upstream": f"http://{above}/v1" if over_http else above}
            starting.append(edge_process(folder, node=f"n{place}", log_level="debug", **settings, **QUICK))
        yield asyncio.run(together(starting, stack))


def passed_on(nodes: list[EdgeProcess]) -> int:
    """How many requests the nodes have sent to their upstream, as their logs have it."""
    lines = [line for node in nodes for line in node.log.read_text().splitlines() if '"event":"Decided"' in line]
    found = [json.loads(line[line.index("{") :]) for line in lines]
    return sum(entry["decision"]["action"] == "escalate" for entry in found)


@pytest.mark.parametrize("kind", ["grpc", "http", "two nodes"])
def test_a_circle_ends_at_the_hop_limit(releases: dict[str, tuple[Path, str]], kind: str) -> None:
    with circle(releases["unsure"][0], kind) as nodes:
        until(lambda: ask(nodes[0])["hops"] == 4, 20, nodes[0].log.read_text)
        time.sleep(0.3)
        before = passed_on(nodes)
        degraded = ask(nodes[0])
        assert passed_on(nodes) - before == 4
        assert (degraded["tier"], degraded["degraded"], degraded["hops"]) == ("edge", True, 4)
        assert (degraded["reason"], degraded["wanted_reason"]) == ("budget", "low_confidence")
        before = passed_on(nodes)
        refused = post(nodes[0], weir={"constraint": "cloud_only"})
        assert refused.status_code == 412
        assert refused.json()["error"]["code"] == "hop_limit"
        assert "max_hops" in refused.json()["error"]["message"]
        assert passed_on(nodes) - before == 4
        assert ask(nodes[0], weir={"constraint": "edge_only"})["hops"] == 0  # nobody is the worse for it
