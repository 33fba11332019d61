"""What a caller is told when nobody answers: what stood in the way, once, and to try again only where that may help."""

from __future__ import annotations

import pytest

from edge.judge import CascadeSettings
from edge.openai_upstream.faults import Refused, of_status
from tests.fakes.node import FakeNode, cloud, engine, request
from wire.errors import CannotConstrain, InvalidRequest, Overloaded, TooManyHops, Unavailable, WeirError
from wire.messages import Context, ResponseFormat

GONE = Unavailable("the engine's process ended, or cannot be reached; try again")
UNHELD = CannotConstrain("response_format: this schema cannot be answered by: not")


async def _told(node: FakeNode, tier: str = "auto", **asked: object) -> WeirError:
    error = (await node.ask(request(tier, **asked))).error  # type: ignore[arg-type]
    assert isinstance(error, WeirError)
    return error


async def test_without_an_upstream_cloud_only_is_not_told_to_try_again() -> None:
    error = await _told(await FakeNode(engine()).ready(), "cloud_only")
    assert type(error) is Unavailable
    assert error.message == (
        "this node has no upstream ([edge] upstream), and the request allows no other tier (cloud_only); "
        "set one, or allow the edge"
    )


async def test_a_request_that_allows_no_tier_at_all_is_told_what_forbids_it() -> None:
    private = CascadeSettings(private_classes=frozenset({"health"}))
    for upstream in (None, cloud()):
        node = await FakeNode(engine(), upstream, private).ready()
        error = await _told(node, "cloud_only", context=Context(request_class="health"))
        assert error.message == (
            "the request must not leave this node, and it allows no tier but the cloud (cloud_only); "
            "give one of them up"
        )


async def test_without_an_upstream_what_is_missing_is_told_with_it() -> None:
    error = await _told(await FakeNode(engine()).ready(), response_format=ResponseFormat("json_object"))
    assert type(error) is InvalidRequest
    assert error.message.endswith("this node has no upstream ([edge] upstream)")


async def test_without_an_upstream_a_schema_is_refused_with_the_reason() -> None:
    node = await FakeNode(engine()).ready()
    node.engine.fail_before = UNHELD
    error = await _told(node)
    assert error.message == (
        f"{UNHELD.message}; and no other tier can be asked: this node has no upstream ([edge] upstream)"
    )


@pytest.mark.parametrize("advice", ["; try again", "; try again later", ", try again soon", "; try again in a moment"])
async def test_trying_again_is_said_once(advice: str) -> None:
    node = await FakeNode(engine(), cloud()).ready()
    node.engine.fail_before = Unavailable(f"the edge is down{advice}")
    assert node.upstream is not None
    node.upstream.fail_before = Unavailable(f"the upstream answered 503: it is down{advice}")
    error = await _told(node)
    assert error.message == (
        "the upstream failed; the edge: the edge is down; the upstream answered 503: it is down; try again"
    )


async def test_a_stream_that_breaks_off_says_once_to_ask_again() -> None:
    node = await FakeNode(engine(0.9)).ready()
    node.engine.fail_after = (6, GONE)
    answer = await node.ask(request(rule="prefix:4"))
    assert str(answer.error) == (
        "the edge's engine broke off in the middle (the engine's process ended, or cannot be reached); "
        "the text so far stands, ask again"
    )


async def test_a_full_engine_keeps_its_own_words() -> None:
    node = await FakeNode(engine()).ready()
    node.engine.fail_before = Overloaded("9 requests wait; try again later")
    assert (await _told(node)).message == "9 requests wait; try again later"


def test_the_end_of_a_chain_is_told_as_it_was_by_every_node_on_the_way_back() -> None:
    said = "the request passed as many nodes as it may (max_hops) and this one cannot answer it by itself; check that"
    for _ in range(4):
        body = f'{{"error": {{"message": "{said}", "code": "hop_limit"}}}}'.encode()
        error = of_status(Refused(412, {}, body), "")
        assert type(error) is TooManyHops
        assert error.message == said
    assert of_status(Refused(412, {}, b'{"error": {"code": "hop_limit"}}'), "").message == "the upstream answered 412"
