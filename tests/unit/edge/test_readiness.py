"""Of several models each is ready or not by itself, over the Open Inference Protocol and /readyz/{model}."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest
from fastapi import FastAPI

from edge.http.app import make_app
from edge.http.readiness import add_readiness
from edge.http.settings import HttpSettings
from edge.judge import CascadeSettings
from edge.node import EdgeNode, NodeModel
from edge.openinference.face import NodeFace
from tests.fakes.node import EDGE_MODEL, FakeNode, engine, soon
from wire.errors import NotFound


async def two_models() -> tuple[EdgeNode, FakeNode, FakeNode]:
    nodes = []
    for name in ("a", "b"):
        local = engine()
        local.model = replace(EDGE_MODEL, name=name, release=f"{name}@1.0.0+0")
        nodes.append(await FakeNode(local).ready())
    models = [
        NodeModel(CascadeSettings(model=name), node.local, node.state, node.cascade)
        for name, node in zip("ab", nodes, strict=True)
    ]
    return EdgeNode(models), *nodes


async def test_a_model_whose_engine_failed_is_not_ready_and_the_other_is() -> None:
    node, _, b = await two_models()
    face = NodeFace(node, readiness=node)
    assert [await face.model_ready(name, "", soon()) for name in "ab"] == [True, True]
    b.local.failed()
    assert [await face.model_ready(name, "", soon()) for name in "ab"] == [True, False]
    assert [await face.model_ready(name, "1.0.0", soon()) for name in "ab"] == [True, False]
    assert await face.server_ready(soon())
    for name, version in (("c", ""), ("a", "2.0.0")):
        with pytest.raises(NotFound):
            await face.model_ready(name, version, soon())


async def test_readyz_says_the_same() -> None:
    node, _, b = await two_models()
    app: FastAPI = make_app(node, HttpSettings())
    add_readiness(app, node)
    b.local.failed()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://node") as client:
        answers = [await client.get(f"/readyz/{name}") for name in "abc"]
    assert [answer.status_code for answer in answers] == [200, 503, 404]
