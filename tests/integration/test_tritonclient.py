"""The official `tritonclient`, by gRPC and HTTP, against a node. It lives in an environment of its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import venv
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from edge.http.app import make_app
from edge.http.settings import HttpSettings
from edge.openinference.face import NodeFace
from edge.openinference.rest import add_open_inference as add_rest
from quantize.progress import Silent
from quantize.sources.cache import Cache
from runtime.http_server import HttpServer
from runtime.tokenizer import Tokenizer
from tests.fakes.classifier import CLASSIFIER, LABELS, FakeClassifier
from tests.fakes.inference import FakeInference
from tests.integration.classifier_process import altered, tiny_classifier
from tests.integration.edge_process import edge_process
from wire.channel import bind, open_server
from wire.messages import Tier
from wire.openinference.server import add_open_inference

CLIENT = "tritonclient[grpc,http]==2.73.0"
SCRIPT = Path(__file__).with_name("triton_client.py")

pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def python() -> Path:
    """An environment with the client, kept in the cache. Where none can be had the tests are skipped, but not in CI."""
    cache = Cache.from_environment(os.environ)
    key = f"test-{CLIENT.replace('[grpc,http]==', '-')}-py{sys.version_info.major}.{sys.version_info.minor}"
    with cache.locked(key, Silent()):
        if not cache.folder(key).exists():
            try:
                with cache.making(key) as folder:
                    _install(folder)
            except (OSError, subprocess.SubprocessError) as error:
                if os.environ.get("CI"):
                    raise
                pytest.skip(f"{CLIENT} cannot be installed here: {error}")
    return cache.folder(key) / "bin" / "python"


def _install(folder: Path) -> None:
    venv.create(folder, with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", CLIENT], check=True, timeout=300)


def ask(python: Path, *arguments: str) -> dict[str, Any]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(
        [str(python), str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_a_node_answers_the_official_client(python: Path, tiny_release: Path) -> None:
    with edge_process(tiny_release) as node:
        http = node.http.removeprefix("http://")
        told = ask(python, "generate", node.grpc, http, "tiny")
    for kind in ("grpc", "http"):
        found = told[kind]
        assert (found["live"], found["ready"], found["model_ready"], found["other_ready"]) == (True, True, True, False)
        assert (found["server"], found["inputs"]) == ("weir", ["text", "prompt"])
        assert "+" in found["versions"][0]
        assert len(found["text"]) == 2
        assert found["text"] == found["again"] == told["grpc"]["text"]
        assert found["tokens"] == [6, 6]
        # Without calibration and upstream every answer is one that would have gone up.
        assert (found["tier"], found["degraded"]) == (["edge", "edge"], [True, True])
        assert found["unasked"]
        assert found["id"] == "r1"
        assert {"weir_tier", "weir_reason", "weir_release", "weir_degraded"} <= set(found["parameters"])
        assert "beam_width" in found["refused"]
    assert "".join(told["stream"]) == told["long"]
    assert len(told["stream"]) > 2


def test_the_official_client_sends_a_classifiers_own_tensors(python: Path, tmp_path: Path) -> None:
    built = tiny_classifier(tmp_path / "built")
    altered(built, tmp_path / "releases" / "intents", "1.0.0", confidence_logit=-1.0)
    texts = ["where is my parcel", "please send the money back to my card and cancel the order"]
    tokenizer = Tokenizer.load(built)
    ids = [tokenizer.encode(text) for text in texts]
    width = max(map(len, ids)) + 3
    tensors = {
        "input_ids": [[*row, *[7] * (width - len(row))] for row in ids],
        "attention_mask": [[1] * len(row) + [0] * (width - len(row)) for row in ids],
    }
    with edge_process(tmp_path / "releases") as node:
        http = node.http.removeprefix("http://")
        told = ask(python, "rows", node.grpc, http, "intents", json.dumps({"texts": texts, "tensors": tensors}))
        inputs = [
            {"name": name, "datatype": "INT64", "shape": [2, width], "data": rows} for name, rows in tensors.items()
        ]
        plain = httpx.post(f"{node.http}/v2/models/intents/infer", json={"inputs": inputs}, timeout=30, trust_env=False)
    assert plain.status_code == 200, plain.text
    in_json = {entry["name"]: entry["data"] for entry in plain.json()["outputs"]}
    for kind, found in told.items():
        assert found["inputs"] == ["text", "text_pair", "input_ids", "attention_mask"]
        text = found["text"]
        assert in_json["label"] == text["label"]
        for form in ("rows_True", "rows_False") if kind == "http" else ("rows_True",):
            rows = found[form]
            assert rows["label"] == text["label"]
            assert np.abs(np.array(rows["scores"]) - np.array(text["scores"])).max() < 1e-3
            # Unsure, and nobody else could read them: the edge's label, which says what stood in the way.
            assert (rows["tier"], rows["reason"]) == (["edge"] * 2, ["capability"] * 2)
            assert (rows["degraded"], rows["confidence"]) == ([True] * 2, pytest.approx([0.2689] * 2, abs=1e-3))
        assert "input_ids has 1073741824 at position 1" in found["unknown"]
        assert "not both" in found["both"]


@asynccontextmanager
async def classifier_node(classifier: FakeClassifier) -> AsyncIterator[tuple[str, str]]:
    service = FakeInference(Tier.EDGE, model=CLASSIFIER)
    face = NodeFace(service, classifies=classifier)
    app = make_app(service, HttpSettings())
    add_rest(app, face, HttpSettings())
    http, server = HttpServer(app, "127.0.0.1:0"), open_server()
    add_open_inference(server, face, 30.0)
    port = bind(server, "127.0.0.1:0")
    await server.start()
    await http.start()
    try:
        yield f"127.0.0.1:{port}", http.address
    finally:
        await http.stop()
        await server.stop(0)


async def test_a_classifier_gives_the_official_client_its_scores(python: Path) -> None:
    classifier = FakeClassifier()
    async with classifier_node(classifier) as (grpc, http):
        told = await asyncio.to_thread(ask, python, "classify", grpc, http, "sizes")
    for found in told.values():
        assert found["label"] == ["medium", "short"]
        assert found["classes"] == list(LABELS)
        assert found["scores"] == [[0.2, 0.6, 0.2], [0.6, 0.2, 0.2]]
        assert found["kinds"] == ["float32", "bool"]
        assert found["logits"] == [[2.0, 0.0, 0.0]]
    # Of each client two texts of the second highest priority and one of the usual.
    assert [asked.context.priority for asked in classifier.requests] == [7, 7, 0] * 2
