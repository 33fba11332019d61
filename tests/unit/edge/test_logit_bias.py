"""A bias names token ids: it goes up where they mean the same, and nowhere else unless the caller means the cloud's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fakes.inference import FakeInference
from tests.fakes.node import CLOUD_MODEL, EDGE_MODEL, FakeNode, cloud, engine, request, soon
from wire.errors import InvalidRequest, Unavailable
from wire.messages import Reason, Sampling, Tier

BIAS = Sampling(logit_bias={3: -100.0, 7: 1.5})
PENALTIES = ("penalties",)


def edge(confidence: float, tokenizer: str = "t") -> FakeInference:
    model = replace(EDGE_MODEL, capabilities=EDGE_MODEL.capabilities + PENALTIES, tokenizer_digest=tokenizer)
    return replace(engine(confidence), model=model)


def above(tokenizer: str) -> FakeInference:
    model = replace(CLOUD_MODEL, capabilities=CLOUD_MODEL.capabilities + PENALTIES, tokenizer_digest=tokenizer)
    return replace(cloud(), model=model)


async def test_an_upstream_of_the_same_tokenizer_gets_the_bias() -> None:
    up = above("t")
    node = await FakeNode(edge(0.3), up).ready()
    answer = await node.ask(request(sampling=BIAS))
    assert (answer.final.tier, answer.final.reason) == (Tier.CLOUD, Reason.LOW_CONFIDENCE)
    assert [sent.sampling for sent in up.requests] == [BIAS]


@pytest.mark.parametrize("rule", ["end", "prefix:4"])
@pytest.mark.parametrize(("ours", "theirs"), [("t", "other"), ("t", ""), ("", "t"), ("", "")])
async def test_any_other_leaves_the_edges_answer_which_says_so(ours: str, theirs: str, rule: str) -> None:
    up = above(theirs)
    node = await FakeNode(edge(0.3, ours), up).ready()
    answer = await node.ask(request(rule=rule, sampling=BIAS))
    final = answer.final
    assert (final.tier, final.degraded, final.reason) == (Tier.EDGE, True, Reason.CAPABILITY)
    assert final.wanted_reason is Reason.LOW_CONFIDENCE
    assert [sent.sampling for sent in node.engine.requests] == [BIAS]
    assert up.requests == []
    assert (await node.ask(request(rule=rule))).final.tier is Tier.CLOUD, "without a bias it goes up as ever"


async def test_an_upstream_that_has_not_told_yet_gets_none() -> None:
    up = above("t")
    node = FakeNode(edge(0.3), up)
    await node.local.refresh()
    early = (await node.ask(request(sampling=BIAS))).final
    assert (early.tier, early.reason, up.requests) == (Tier.EDGE, Reason.CAPABILITY, [])
    node.state.described(await up.describe(soon()))
    assert (await node.ask(request(sampling=BIAS))).final.tier is Tier.CLOUD
    up.model = above("other").model
    node.state.described(await up.describe(soon()))
    assert (await node.ask(request(sampling=BIAS))).final.reason is Reason.CAPABILITY


async def test_a_sure_answer_is_no_other_for_its_bias() -> None:
    node = await FakeNode(edge(0.9), above("other")).ready()
    final = (await node.ask(request(sampling=BIAS))).final
    assert (final.tier, final.degraded, final.reason) == (Tier.EDGE, False, Reason.CONFIDENT)


@pytest.mark.parametrize("theirs", ["t", "other", ""])
async def test_who_allows_the_cloud_alone_means_its_ids(theirs: str) -> None:
    up = above(theirs)
    node = await FakeNode(edge(0.9), up).ready()
    final = (await node.ask(request("cloud_only", sampling=BIAS))).final
    assert (final.tier, final.reason) == (Tier.CLOUD, Reason.CLOUD_ONLY)
    assert [sent.sampling for sent in up.requests] == [BIAS]


async def test_without_an_upstream_that_is_what_is_told() -> None:
    final = (await (await FakeNode(edge(0.3)).ready()).ask(request(sampling=BIAS))).final
    assert (final.degraded, final.reason) == (True, Reason.OFFLINE)


async def test_where_the_edge_cannot_answer_the_refusal_names_the_ids() -> None:
    node = await FakeNode(edge(0.3), above("other")).ready()
    node.engine.fail_before = Unavailable("the engine's process ended; try again")
    error = (await node.ask(request(sampling=BIAS))).error
    assert type(error) is Unavailable
    assert error.message.startswith("it names token ids (logit_bias, input_ids), which no other tier is known to read")
    bare = await FakeNode(engine(0.9), above("other")).ready()
    error = (await bare.ask(request(sampling=BIAS))).error
    assert type(error) is InvalidRequest
    assert error.message.startswith("no tier in reach can serve what is asked: penalties; it names token ids")
