"""How an upstream is named and reached: addresses, keys that stay hidden, and the hop count over HTTP."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from edge.config import API_KEY_VARIABLE, EdgeConfig
from edge.front.upstream import make_upstream
from edge.http.app import make_app
from edge.http.asking import hops
from edge.http.settings import HttpSettings
from edge.launcher import Launcher
from edge.openai_upstream.answer import Answer
from edge.openai_upstream.client import OpenAiUpstream
from edge.openai_upstream.logprobs import Logprobs
from edge.openai_upstream.models import description
from edge.openai_upstream.settings import OpenAiSettings
from edge.openinference.face import NodeFace
from edge.openinference.rest import add_open_inference
from runtime.config import ConfigError, load
from tests.fakes.classifier import CLASSIFIER, FakeClassifier
from tests.fakes.inference import FakeInference
from tests.fakes.node import FakeNode, cloud, engine
from wire.description import ModelInfo
from wire.errors import InvalidRequest
from wire.grpc_client import InferenceClient
from wire.messages import Reason, Tier

HERE: dict[str, Any] = {"releases_dir": "/nowhere"}
URL = "https://api.example.com/v1"


class Nobody:
    """Satisfies wire.service.ExchangeObserver."""

    def on_exchange(self, exchange: object) -> None:
        pass


def config(**settings: Any) -> EdgeConfig:
    return EdgeConfig(**HERE, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"upstream": "ftp://x/v1"},
        {"upstream": "https://"},
        {"upstream": "https://user:key@x/v1"},
        {"upstream": "https://x/v1?key=1"},
        {"upstream": "x"},
        {"upstream": "x:1", "upstream_api_key": "k"},
        {"upstream_logprobs": True},
        {"upstream": URL, "upstream_api_key": "k", "upstream_api_key_file": "/k"},
        {"upstream": URL, "upstream_capabilities": "stream,telepathy"},
    ],
)
def test_what_cannot_be_an_upstream_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        config(**settings)


def test_a_wrong_key_is_not_shown_by_its_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError) as caught:
        load(EdgeConfig, None, {**HERE, "upstream": "x:1", "upstream_api_key": "top-secret"})
    assert "top-secret" not in str(caught.value)


async def test_the_address_says_which_kind_it_is() -> None:
    for upstream, kind in (("gateway:443", InferenceClient), (URL + "/", OpenAiUpstream)):
        client = make_upstream(config(upstream=upstream), Nobody())
        assert type(client) is kind
        assert client is not None
        assert client.target == upstream.rstrip("/")
        await client.close()
    assert make_upstream(config(), Nobody()) is None


def test_the_key_reaches_the_front_and_no_argument() -> None:
    given = config(upstream=URL, upstream_api_key="top-secret")
    assert "top-secret" not in given.to_json()
    assert "top-secret" not in repr(given)
    assert given.secrets() == {API_KEY_VARIABLE: "top-secret"}
    front = EdgeConfig.from_json(given.to_json(), given.secrets())
    assert front.upstream_api_key is not None
    assert front.upstream_api_key.get_secret_value() == "top-secret"
    assert EdgeConfig.from_json(given.to_json()).upstream_api_key is None


def test_the_launcher_hands_the_key_to_the_front_alone(tiny_release: Path, tmp_path: Path) -> None:
    given = EdgeConfig(releases_dir=tiny_release, run_dir=tmp_path, upstream=URL, upstream_api_key="top-secret")
    launcher = Launcher(given)
    [front] = launcher._front_specs()
    assert front.environment[API_KEY_VARIABLE] == "top-secret"
    assert "top-secret" not in " ".join(front.arguments)
    [engine] = launcher.engines[0].specs()
    assert "top-secret" not in str(engine)
    # What came by this process's own environment would be inherited.
    assert API_KEY_VARIABLE in engine.withheld


def test_a_key_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    given = config(upstream=URL, upstream_api_key_file=file)
    with pytest.raises(OSError, match="cannot be read"):
        make_upstream(given, Nobody())
    file.write_text("two words\n")
    with pytest.raises(OSError, match="no header takes") as caught:
        make_upstream(given, Nobody())
    assert "two words" not in str(caught.value)
    file.write_text("sk-1234\n")
    client = make_upstream(given, Nobody())
    assert isinstance(client, OpenAiUpstream)
    assert client._settings.api_key == "sk-1234"


def test_hops_over_http_are_a_small_number() -> None:
    assert (hops(""), hops("3")) == (0, 3)
    for wrong in ("-1", "x", "1.0", "99999", "²"):
        with pytest.raises(InvalidRequest, match="x-weir-hops"):
            hops(wrong)


async def test_a_request_that_passed_too_many_nodes_is_refused_over_http() -> None:
    from starlette.testclient import TestClient

    node = await FakeNode(engine(), cloud()).ready()
    client = TestClient(make_app(node, HttpSettings()))  # type: ignore[arg-type]
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    answer = client.post("/v1/chat/completions", json=body, headers={"x-weir-hops": "5"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (412, "hop_limit")
    assert client.post("/v1/chat/completions", json=body, headers={"x-weir-hops": "x"}).status_code == 400
    last = client.post("/v1/chat/completions", json=body, headers={"x-weir-hops": "4"})
    assert last.json()["weir"]["hops"] == 4


def test_a_nodes_provenance_is_used_and_nonsense_in_it_counts_for_nothing() -> None:
    told = {
        "tier": "edge", "node": "site", "release": "m@1+a", "reason": "confident", "confidence": 0.9, "hops": 2,
        "precision": 8, "degraded": False, "timings_ms": {"total": 3.0, "bad": "x", "worse": -1},
        "edge_tokens_spent": 200,
    }  # fmt: skip
    lies = {
        "tier": "moon", "node": 7, "release": None, "reason": "because", "confidence": 7, "hops": -3,
        "precision": "8", "degraded": "yes", "timings_ms": [1], "wanted_reason": {}, "edge_tokens_spent": -4,
    }  # fmt: skip
    end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    answers = []
    for weir in (told, lies, "text"):
        answer = Answer("host", "r", Logprobs(wanted=False, top=0, left=0))
        list(answer.event(json.dumps({**end, "weir": weir}).encode()))
        answers.append(answer.final(1))
    first, second, third = answers
    assert (first.tier, first.node, first.release, first.hops) == (Tier.EDGE, "site", "m@1+a", 2)
    assert (first.reason, first.confidence, first.precision) == (Reason.CONFIDENT, 0.9, 8)
    assert first.timings_ms == {"total": 3.0}
    assert (first.edge_tokens_spent, second.edge_tokens_spent) == (200, 0)
    assert second == third
    assert (second.tier, second.node, second.release, second.hops) == (Tier.CLOUD, "host", "", 1)
    assert (second.confidence, second.degraded, second.timings_ms) == (None, False, {})


def test_a_node_behind_a_url_is_known_as_one() -> None:
    settings = OpenAiSettings(URL)
    entry = {"id": "m", "weir": {"release": "m@1+a", "capabilities": ["stream", "sample", "choice", 7]}}
    told = description(json.dumps({"data": [entry]}).encode(), settings, "host")
    assert told.tier is Tier.EDGE
    assert told.models[0].release == "m@1+a"
    assert told.models[0].capabilities == ("stream", "sample")
    for nonsense in (b"", b"[]", b'{"data": {"id": "x"}}', b'{"data": [1, {"id": ""}, {"id": 4}]}', b"[" * 100_000):
        assert description(nonsense, settings, "host").models == ()


async def test_the_documented_calls_work() -> None:
    from starlette.testclient import TestClient

    page = (Path(__file__).parents[3] / "docs" / "openinference.md").read_text()
    calls = re.findall(r"curl -s localhost:8080(\S+) -d '(.*?)'", page, flags=re.DOTALL)
    classifier, told = FakeClassifier(), []
    for (path, body), model in zip(
        calls, (ModelInfo("tiny", "tiny@1.0.0+0"), replace(CLASSIFIER, name="intents")), strict=True
    ):
        service = FakeInference(model=model)
        app = make_app(service, HttpSettings())
        add_open_inference(app, NodeFace(service, classifies=classifier), HttpSettings())
        told.append(TestClient(app).post(path, content=body).json()["outputs"][0]["data"])
    assert told == [["one two three"], ["short", "short"]]
    assert [asked.input_ids for asked in classifier.requests] == [(101, 7592, 2017, 102), (101, 7632, 102)]
