"""A whole edge node as processes: official clients, bad input, sudden deaths, following, a clean end."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from tests.fakes.inference import FakeInference
from tests.integration.edge_process import EdgeProcess, calibrated_release, edge_process, until
from wire.channel import bind, open_server
from wire.description import ModelInfo
from wire.errors import WeirError
from wire.grpc_server import HealthReporter, add_inference

SURE, UNSURE = 5.0, -1.0
MESSAGES: list[Any] = [{"role": "user", "content": "Where is my parcel?"}]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture(scope="module")
def releases(tiny_release: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """Folders and ids: a release that is always sure, an unsure one, and a folder with both."""
    root = tmp_path_factory.mktemp("releases")
    sure = calibrated_release(tiny_release, root / "both" / "sure", "1.0.0", SURE)
    unsure = calibrated_release(tiny_release, root / "both" / "unsure", "0.9.0", UNSURE)
    return {
        "sure": (root / "both" / "sure", sure.id),
        "unsure": (root / "both" / "unsure", unsure.id),
        "both": (root / "both", ""),
    }


@pytest.fixture(scope="module")
def node(releases: dict[str, tuple[Path, str]]) -> Iterator[EdgeProcess]:
    with edge_process(releases["sure"][0]) as running:
        yield running


@asynccontextmanager
async def serving(service: FakeInference) -> AsyncIterator[str]:
    """A fake cloud on a real port."""
    server = open_server()
    add_inference(server, service, 30.0)
    HealthReporter(server)
    port = bind(server, "127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


def ask(node: EdgeProcess, **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 8, **fields}
    return httpx.post(f"{node.http}/v1/chat/completions", json=body, timeout=30)


def test_the_official_client_gets_answers_and_streams(node: EdgeProcess) -> None:
    client = openai.OpenAI(base_url=f"{node.http}/v1", api_key="unused", max_retries=0)
    whole = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=40)
    assert whole.model_extra is not None
    assert whole.model_extra["weir"]["tier"] == "edge"
    assert whole.model_extra["weir"]["reason"] == "confident"
    assert whole.model_extra["weir"]["weight_digest"] == node.served()["weight_digest"]
    pieces = []
    stream = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=40, stream=True)
    last: Any = None
    for chunk in stream:
        pieces.append(chunk.choices[0].delta.content or "")
        last = chunk
    assert "".join(pieces) == whole.choices[0].message.content
    assert last.model_extra["weir"]["precision"] == 8
    assert [model.id for model in client.models.list()] == ["tiny"]


BAD: list[tuple[str, bytes | dict[str, Any], int]] = [
    ("empty messages", {"messages": []}, 400),
    ("silence", {"messages": [{"role": "user", "content": "  "}]}, 400),
    ("unknown model", {"model": "other"}, 404),
    ("negative max_tokens", {"max_tokens": -1}, 400),
    ("NaN temperature", b'{"model": "tiny", "messages": [{"role":"user","content":"a"}], "temperature": NaN}', 400),
    ("temperature", {"temperature": 9}, 400),
    ("invalid UTF-8", b'{"model": "tiny", "messages": [{"role": "user", "content": "\xc3\x28"}]}', 400),
    ("over-long context", {"messages": [{"role": "user", "content": "where is it? " * 400}]}, 400),
    ("10 MB prompt", {"messages": [{"role": "user", "content": "x" * 10_000_000}]}, 413),
    ("2 MB prompt", {"messages": [{"role": "user", "content": "x" * 2_000_000}]}, 413),
    ("unknown role", {"messages": [{"role": "tool", "content": "x"}]}, 400),
    (
        "a schema that is none",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "poem"}}}},
        400,
    ),
]


def test_bad_input_is_a_4xx_with_a_message_and_disturbs_nobody(node: EdgeProcess) -> None:
    undisturbed: list[str] = []

    def stream() -> None:
        body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 400, "stream": True, "temperature": 1.0, "seed": 3}
        undisturbed.append(httpx.post(f"{node.http}/v1/chat/completions", json=body, timeout=60).text)

    other = threading.Thread(target=stream)
    other.start()
    for name, content, status in BAD:
        if isinstance(content, bytes):
            answer = httpx.post(f"{node.http}/v1/chat/completions", content=content, timeout=30)
        else:
            answer = ask(node, **content)
        assert answer.status_code == status, (name, answer.text)
        assert len(answer.json()["error"]["message"]) > 10, name
    other.join(60)
    assert undisturbed[0].endswith("data: [DONE]\n\n")


def test_a_killed_engine_is_unavailable_and_then_back_by_itself(node: EdgeProcess) -> None:
    engine = node.child("engine")
    front = node.child("front")
    engine.kill()
    statuses = []

    def answered() -> bool:
        statuses.append(ask(node).status_code)
        return statuses[-1] == 200 and len(statuses) > 1

    until(answered, 60, node.log.read_text)
    assert 503 in statuses
    assert set(statuses) == {503, 200}
    assert node.child("engine").pid != engine.pid
    assert node.child("front").pid == front.pid


async def test_a_killed_engine_escalates_where_there_is_an_upstream(releases: dict[str, tuple[Path, str]]) -> None:
    cloud = FakeInference(model=ModelInfo("big", "big@1.0.0+0", capabilities=("stream", "sample")))
    async with serving(cloud) as address:
        with await asyncio.to_thread(_enter, releases["sure"][0], upstream=address, probe_interval_s=0.2) as running:
            assert (await asyncio.to_thread(ask, running)).json()["weir"]["tier"] == "edge"
            running.child("engine").kill()
            answer = await asyncio.to_thread(ask, running)
            assert answer.status_code == 200
            assert answer.headers["x-weir-tier"] == "cloud"
            assert answer.json()["weir"]["reason"] in ("capability", "pre_routed")
            await asyncio.to_thread(until, lambda: ask(running).json()["weir"]["tier"] == "edge", 60)


class _enter:
    """A context manager that was entered in another thread."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self._context = edge_process(folder, **settings)
        self._node = self._context.__enter__()

    def __enter__(self) -> EdgeProcess:
        return self._node

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)


async def test_it_escalates_degrades_and_follows_the_active_release(releases: dict[str, tuple[Path, str]]) -> None:
    sure, unsure = releases["sure"][1], releases["unsure"][1]
    cloud = FakeInference(model=ModelInfo("big", "big@1.0.0+0", capabilities=("stream", "sample")))
    async with serving(cloud) as address:
        with await asyncio.to_thread(_enter, releases["both"][0], upstream=address, probe_interval_s=0.1) as running:
            assert running.served()["release"] == sure
            assert (await asyncio.to_thread(ask, running)).json()["weir"]["tier"] == "edge"
            cloud.active_releases = {"tiny": "tiny@9.9.9+000000000000"}
            await asyncio.sleep(0.5)
            cloud.active_releases = {"tiny": unsure}
            await asyncio.to_thread(running.wait_ready, None, unsure)
            cloud.active_releases = {}  # an engine that dies now starts with what was in force last
            engine = running.child("engine")
            engine.kill()
            home = {"weir": {"constraint": "edge_only"}}
            await asyncio.to_thread(until, lambda: not engine.is_running() or engine.status() == "zombie", 10)
            await asyncio.to_thread(until, lambda: ask(running, **home).is_success, 60)
            assert (await asyncio.to_thread(ask, running, **home)).json()["weir"]["release"] == unsure
            escalated = (await asyncio.to_thread(ask, running)).json()
            assert escalated["choices"][0]["message"]["content"] == "one two three"
            assert escalated["weir"]["reason"] == "low_confidence"
            assert escalated["weir"]["confidence"] < escalated["weir"]["threshold"]
            streamed = (await asyncio.to_thread(ask, running, stream=True)).text
            assert streamed.endswith("data: [DONE]\n\n")
            assert '"tier":"cloud"' in streamed
            cloud.fail_after = (1, WeirError("a rank was killed"))
            degraded = (await asyncio.to_thread(ask, running)).json()["weir"]
            assert (degraded["tier"], degraded["degraded"]) == ("edge", True)
            assert (degraded["reason"], degraded["wanted_reason"]) == ("upstream_error", "low_confidence")
            assert (degraded["release"], degraded["node"]) == (unsure, "edge")
        log = running.launcher.returncode
    assert log == 0


def test_a_pinned_precision_is_served_and_a_signal_ends_everything(releases: dict[str, tuple[Path, str]]) -> None:
    with edge_process(releases["sure"][0], precision="4") as running:
        answer = ask(running).json()["weir"]
        assert (answer["precision"], answer["weight_digest"]) == (4, running.served()["weight_digest"])
        children = running.children()
        assert len(children) == 2
    assert running.launcher.returncode == 0
    assert not any(child.is_running() for child in children)


def test_a_run_dir_that_was_cleaned_away_is_made_anew(releases: dict[str, tuple[Path, str]]) -> None:
    with edge_process(releases["sure"][0]) as running:
        shutil.rmtree(running.run_dir)
        engine = running.child("engine")
        engine.kill()
        engine.wait(10)
        # The next one can be there before anybody notices: wait for its answers, not for the gap.
        until(lambda: running.run_dir.is_dir() and ask(running).status_code == 200, 30)
        assert running.child("engine").pid != engine.pid


def test_children_die_with_a_killed_launcher(releases: dict[str, tuple[Path, str]]) -> None:
    with edge_process(releases["sure"][0]) as running:
        children = running.children()
        os.kill(running.launcher.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []


def test_what_can_never_start_ends_with_a_message(releases: dict[str, tuple[Path, str]], tmp_path: Path) -> None:
    def start(*settings: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "edge", *settings]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    empty = start(f"releases_dir={tmp_path}")
    assert empty.returncode == 1
    assert "no release" in empty.stderr
    assert start("releases_dir=x", "slots=0").returncode == 2
    with httpx.Client() as _, _taken() as port:
        taken = start(
            f"releases_dir={releases['sure'][0]}", f"http_address=127.0.0.1:{port}", "grpc_address=127.0.0.1:0"
        )
    assert taken.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in taken.stderr


class _taken:
    """A port somebody else listens on."""

    def __enter__(self) -> int:
        import socket

        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen()
        return int(self._socket.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._socket.close()


@pytest.mark.real_model
def test_a_real_model_answers_and_streams_over_http(smollm2_release: Path, tmp_path: Path) -> None:
    calibrated_release(smollm2_release, tmp_path / "release", "1.0.0", SURE)
    with edge_process(tmp_path / "release") as running:
        client = openai.OpenAI(base_url=f"{running.http}/v1", api_key="unused", max_retries=0)
        question: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
        whole = client.chat.completions.create(model="smollm2-135m-instruct", messages=question, max_tokens=16)
        assert "Paris" in (whole.choices[0].message.content or "")
        began, arrivals = time.monotonic(), []
        question[0]["content"] = "Tell me about rivers."
        stream = client.chat.completions.create(
            model="smollm2-135m-instruct", messages=question, max_tokens=64, stream=True
        )
        for chunk in stream:
            arrivals += [time.monotonic() - began] if chunk.choices[0].delta.content else []
    assert len(arrivals) >= 16
    assert arrivals[0] < arrivals[-1] / 2


def test_the_log_holds_no_text(node: EdgeProcess) -> None:
    ask(node, messages=[{"role": "user", "content": "a very secret sentence"}])
    log = node.log.read_text()
    assert "secret" not in log
    events = [json.loads(line.partition(" INFO ")[2]) for line in log.splitlines() if "weir.edge.events INFO" in line]
    assert "EngineChanged" in {event["event"] for event in events}
