"""`Client.classify` and `weir classify` against a real gRPC server."""

from __future__ import annotations

import json

import pytest

import weir
from tests.fakes.classifies import FakeClassifies
from tests.unit.weir.serving import served
from weir.cli.main import main
from wire.errors import Overloaded
from wire.messages import Tier, TierConstraint


async def test_a_label_says_where_it_came_from_and_every_option_reaches_the_node() -> None:
    service = FakeClassifies()
    with served(service, classifies=service) as target:
        async with weir.AsyncClient(target) as client:
            answer = await client.classify(
                "where is it",
                model="intents",
                text_pair="here",
                tier="edge_only",
                top_labels=2,
                return_logits=True,
                tenant="t",
                value=2.0,
                idempotency_key="k",
            )
    assert (answer.label, answer.tier, answer.release) == ("parcel", Tier.EDGE, "intents@1.0.0+e")
    assert len(answer.logits) == 3
    (request,) = service.requests
    assert (request.text, request.text_pair, request.model, request.top_labels) == ("where is it", "here", "intents", 2)
    assert (request.constraints.tier, request.context.tenant, request.context.value) == (
        TierConstraint.EDGE_ONLY, "t", 2.0,
    )  # fmt: skip
    assert request.idempotency_key == "k"


def test_the_blocking_client_labels_and_raises_what_the_node_raised() -> None:
    service = FakeClassifies()
    with served(service, classifies=service) as target, weir.Client(target) as client:
        assert client.classify("a").label == "parcel"
        service.broken = Overloaded("full")
        with pytest.raises(weir.Overloaded, match="full"):
            client.classify("a")
        with pytest.raises(TypeError, match="unknown option"):
            client.classify("a", colour="red")  # type: ignore[call-arg]
        with pytest.raises(weir.InvalidRequest, match="tier"):
            client.classify("a", tier="moon")  # type: ignore[arg-type]
    with served(FakeClassifies()) as target, weir.Client(target) as client, pytest.raises(weir.NotSupported):
        client.classify("a")


def test_the_command_prints_the_label_and_its_provenance(capsys: pytest.CaptureFixture[str]) -> None:
    service = FakeClassifies()
    with served(service, classifies=service) as target:
        assert main(["classify", "where is it", "--node", target]) == 0
        told = capsys.readouterr()
        assert told.out.strip() == "parcel"
        assert "parcel 0.80" in told.err and "edge (edge_only)" in told.err
        assert main(["classify", "where is it", "--node", target, "--cloud-only", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert (document["label"], document["tier"]) == ("parcel", "edge")
        assert service.requests[-1].constraints.tier is TierConstraint.CLOUD_ONLY
    assert main(["classify", "a", "--node", target, "--edge-only", "--cloud-only"]) == 2
