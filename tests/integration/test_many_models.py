"""Several models on one node, and a node above a node, as processes: routes, cascades of labels, a dead engine."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from edge.models import folder_of
from release.listing import read_manifest
from release.manifest import MANIFEST_NAME, write
from tests.integration.classifier_process import altered, tiny_classifier
from tests.integration.edge_process import EdgeProcess, calibrated_release, edge_process, until
from tests.releases import tiny_qwen2
from weir import AsyncClient, Client, InvalidRequest, NotFound, Tier
from wire.deadline import Deadline
from wire.engine import EngineStatus
from wire.grpc_client import EngineControlClient
from wire.service import Call

SURE, UNSURE = 5.0, -1.0
SLOTS = {"one": 1, "four": 4}
TEXT = "where is my parcel it has not arrived"
MESSAGES = [{"role": "user", "content": "Where is my parcel?"}]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture(scope="module")
def classifiers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """`full` is sure of everything, `unsure` of nothing; both are called intents."""
    root = tmp_path_factory.mktemp("classifiers")
    full = tiny_classifier(root / "built")
    altered(full, root / "full" / "release", "1.0.0", confidence_logit=SURE)
    altered(full, root / "unsure" / "release", "1.1.0", confidence_logit=UNSURE)
    return {"plain": full, "full": root / "full", "unsure": root / "unsure"}


@pytest.fixture(scope="module")
def releases(classifiers: dict[str, Path], tiny_release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that writes, tiny, and one that labels, intents."""
    root = tmp_path_factory.mktemp("several")
    calibrated_release(tiny_release, root / "tiny", "1.0.0", SURE)
    altered(classifiers["plain"], root / "intents", "1.0.0", confidence_logit=SURE)
    return root


@pytest.fixture(scope="module")
def node(releases: Path) -> Iterator[EdgeProcess]:
    with edge_process(releases) as running:
        until(lambda: len(models(running)) == 2, 60, running.log.read_text)
        yield running


def models(node: EdgeProcess) -> dict[str, dict[str, Any]]:
    return {entry["id"]: entry for entry in httpx.get(f"{node.http}/v1/models").json()["data"]}


def label(node: EdgeProcess, text: object = TEXT, **fields: object) -> httpx.Response:
    return httpx.post(f"{node.http}/v1/classify", json={"text": text, **fields}, timeout=30)


def chat(node: EdgeProcess, **fields: object) -> httpx.Response:
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 8, **fields}
    return httpx.post(f"{node.http}/v1/chat/completions", json=body, timeout=30)


def test_every_model_that_is_found_is_served_under_its_name(node: EdgeProcess) -> None:
    assert set(models(node)) == {"tiny", "intents"}
    answer = label(node)  # one model labels: it need not be named
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert (body["object"], body["model"], body["weir"]["tier"]) == ("classification", "intents", "edge")
    assert body["weir"]["reason"] == "confident"
    assert body["weir"]["confidence"] == pytest.approx(0.9933, abs=1e-3)
    assert body["label"] == body["scores"][0]["label"]
    assert sum(score["score"] for score in body["scores"]) == pytest.approx(1)
    assert answer.headers["x-weir-tier"] == "edge"
    assert chat(node).status_code == 200
    with Client(node.grpc) as client:
        assert client.classify(TEXT, model="intents", return_logits=True).label == body["label"]
        assert len(client.classify(TEXT, return_logits=True).logits) == 3
        assert client.generate("hello", model="tiny", max_tokens=4).tier is Tier.EDGE
        described = client.describe()
        assert {model.name: model.tasks for model in described.models} == {
            "tiny": ("generate",),
            "intents": ("classify",),
        }


def test_many_texts_in_one_call_and_one_bad_one_among_them(node: EdgeProcess) -> None:
    body = label(node, [TEXT, "  ", "please send the money back"], top_labels=1).json()
    assert [entry.get("object", "error") for entry in body["data"]] == ["classification", "error", "classification"]
    assert all(len(entry["scores"]) == 1 for entry in body["data"] if "scores" in entry)


def test_what_cannot_be_served_is_refused_by_name(node: EdgeProcess) -> None:
    with Client(node.grpc) as client:
        with pytest.raises(NotFound, match="'intents', 'tiny'"):
            client.classify(TEXT, model="other")
        with pytest.raises(InvalidRequest, match="writes text"):
            client.classify(TEXT, model="tiny")
        with pytest.raises(InvalidRequest, match="labels texts"):
            client.generate("hello", model="intents")
    for fields, status in (
        ({"text": ""}, 400),
        ({"unknown": 1}, 400),
        ({"model": "other"}, 404),
        ({"model": "tiny"}, 400),
        ({"text_pair": "b"}, 400),
        ({"text": "\ud800"}, 400),
        ({"weir": {"commit_rule": "prefix:8"}}, 400),
    ):
        answer = httpx.post(
            f"{node.http}/v1/classify",
            content=json.dumps({"text": TEXT, **fields}),
            headers={"content-type": "application/json"},
            timeout=30,
        )
        assert answer.status_code == status, (fields, answer.text)
        assert len(answer.json()["error"]["message"]) > 10


def test_a_model_whose_engine_dies_disturbs_no_other(node: EdgeProcess) -> None:
    engine = node.child("classifier")
    before = node.child("engine").pid
    os.kill(engine.pid, signal.SIGKILL)
    assert chat(node).status_code == 200
    ready = httpx.get(f"{node.http}/readyz")
    assert ready.status_code == 200
    until(lambda: httpx.get(f"{node.http}/readyz/intents").status_code == 200, 30, node.log.read_text)
    assert httpx.get(f"{node.http}/readyz/tiny").json() == {"model": "tiny", "ready": True}
    assert httpx.get(f"{node.http}/readyz/other").status_code == 404
    until(lambda: label(node).status_code == 200, 30, node.log.read_text)
    assert node.child("engine").pid == before
    assert node.child("classifier").pid != engine.pid


async def test_an_unsure_label_comes_from_the_node_above(classifiers: dict[str, Path]) -> None:
    with (
        edge_process(classifiers["full"], node="above") as above,
        edge_process(
            classifiers["unsure"],
            node="below",
            upstream=above.grpc,
            rehearse=False,
            precision="4",
            probe_interval_s=0.2,
        ) as below,
    ):
        async with AsyncClient(below.grpc) as client:
            answer = await client.classify(TEXT, top_labels=2)
            # A node that answers by itself says why in its own words.
            assert (answer.node, answer.tier, answer.reason) == ("above", Tier.EDGE, "confident")
            assert not answer.degraded
            assert (answer.hops, answer.precision, len(answer.scores)) == (1, 8, 2)
            assert answer.release.startswith("intents@1.0.0")
            assert answer.confidence == pytest.approx(0.9933, abs=1e-3)
            assert answer.timings_ms["upstream_total"] > 0 and answer.timings_ms["edge_classify"] > 0
            assert answer.timings_ms["upstream.edge_classify"] > 0
            own = await client.classify(TEXT, tier="edge_only")
            assert (own.node, own.precision, own.reason) == ("below", 4, "edge_only")
            assert own.release.startswith("intents@1.1.0")
            os.kill(above.launcher.pid, signal.SIGSTOP)
            for child in above.children():
                os.kill(child.pid, signal.SIGSTOP)
            try:
                degraded = await client.classify(TEXT, deadline_s=3)
            finally:
                for child in above.children():
                    os.kill(child.pid, signal.SIGCONT)
                os.kill(above.launcher.pid, signal.SIGCONT)
            assert (degraded.node, degraded.degraded, degraded.wanted_reason) == ("below", True, "low_confidence")


def test_models_are_set_one_by_one(releases: Path, tmp_path: Path) -> None:
    entries = [{"name": "intents", "precision": "4", "threads": 1}, {"name": "gone"}]
    with edge_process(releases, models=json.dumps(entries), default_model="intents") as running:
        assert running.served()["precision"] == 4
        assert set(models(running)) == {"intents"}
        assert "no release of 'gone'" in running.log.read_text()
        assert label(running).json()["weir"]["precision"] == 4
        with Client(running.grpc) as client, pytest.raises(NotFound):
            client.generate("hello", model="tiny")


def writer(source: Path, folder: Path, name: str) -> str:
    """A decoder's release under another name; returns its id."""
    manifest = dataclasses.replace(calibrated_release(source, folder, "1.0.0", SURE), name=name)
    (folder / MANIFEST_NAME).write_text(write(manifest))
    return read_manifest(folder).id


@asynccontextmanager
async def controls(node: EdgeProcess) -> AsyncIterator[dict[str, EngineControlClient]]:
    """The control of each model's engine."""
    found = {name: EngineControlClient(f"unix:{folder_of(node.run_dir, name) / 'engine.sock'}") for name in SLOTS}
    try:
        yield found
    finally:
        for control in found.values():
            await control.close()


async def told(controls: dict[str, EngineControlClient]) -> dict[str, EngineStatus]:
    return {name: await control.status(Call(Deadline.after(5))) for name, control in controls.items()}


async def test_two_models_that_write_answer_side_by_side_each_in_slots_of_its_own(
    tiny_release: Path, tmp_path: Path
) -> None:
    sources = {"one": tiny_release, "four": tiny_qwen2() / "release"}
    ids = {name: writer(source, tmp_path / name, name) for name, source in sources.items()}
    entries = json.dumps([{"name": name, "slots": slots} for name, slots in SLOTS.items()])
    with edge_process(tmp_path, models=entries, precision="8", rehearse=False) as node:
        until(lambda: set(models(node)) == set(SLOTS), 60, node.log.read_text)
        async with AsyncClient(node.grpc) as client, controls(node) as engines:
            asked = {
                name: asyncio.gather(*(client.generate(f"{n} {TEXT}", model=name, max_tokens=200) for n in range(8)))
                for name in SLOTS
            }
            seen = []
            while not all(tasks.done() for tasks in asked.values()):
                seen.append(await told(engines))
            answers = {name: await tasks for name, tasks in asked.items()}
            last = await told(engines)
    for name, slots in SLOTS.items():
        assert {answer.release for answer in answers[name]} == {ids[name]}
        assert {answer.tier for answer in answers[name]} == {Tier.EDGE}
        assert (last[name].slots, last[name].release, last[name].active) == (slots, ids[name], 0)
        assert max(status[name].active for status in seen) == slots, "all of its own, and none of the other's"
    assert any(all(status[name].active for name in SLOTS) for status in seen), "at the same time"
    assert last["one"].pid != last["four"].pid
    assert {answer.text for answer in answers["one"]}.isdisjoint(answer.text for answer in answers["four"])
