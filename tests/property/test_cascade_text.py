"""Laws of what a client sees, whatever the tiers do:

an answer's text is one tier's whole text, never two mixed, never one twice;
after an error it is the beginning of one tier's text;
nothing is shown before Committed, and Final comes last and once;
no slot is held when the answer is over, and the upstream never sees two keys for one request.
"""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.node import CLOUD_WORDS, EDGE_WORDS, Answer, FakeNode, cloud, engine, request, signals
from wire.errors import DeadlineExceeded, InvalidRequest, Overloaded, PreconditionFailed, Unavailable, WeirError
from wire.messages import Committed, Delta, Final

ERRORS = st.sampled_from(
    [
        Unavailable("u"),
        Overloaded("o"),
        WeirError("w"),
        DeadlineExceeded("d"),
        InvalidRequest("i"),
        PreconditionFailed("p"),
    ]
)
MISHAP = st.one_of(st.none(), st.tuples(st.integers(-1, 12), ERRORS))


@settings(max_examples=150, deadline=None)
@given(
    confidences=st.lists(st.floats(0.005, 0.995), min_size=1, max_size=len(EDGE_WORDS)),
    edge_mishap=MISHAP,
    cloud_mishap=MISHAP,
    tier=st.sampled_from(["auto", "edge_only", "cloud_only"]),
    rule=st.sampled_from(["end", "prefix:1", "prefix:4", "prefix:9"]),
    has_upstream=st.booleans(),
)
def test_one_tier_answers_whole_or_the_client_is_told(  # type: ignore[no-untyped-def]  # noqa: PLR0917
    confidences, edge_mishap, cloud_mishap, tier, rule, has_upstream
) -> None:
    local, above = engine(), cloud()
    local.signals = tuple(signals(value, n + 1) for n, value in enumerate(confidences))

    async def play() -> Answer:
        node = await FakeNode(local, above if has_upstream else None).ready()
        for service, mishap in ((local, edge_mishap), (above, cloud_mishap)):
            if mishap is not None and mishap[0] < 0:
                service.fail_before = mishap[1]
            else:
                service.fail_after = mishap
        return await node.ask(request(tier, rule))

    answer = asyncio.run(play())
    texts = ("".join(EDGE_WORDS), "".join(CLOUD_WORDS))
    if answer.error is None:
        assert answer.text == texts[0 if answer.final.tier == "edge" else 1]
        assert answer.committed.tier == answer.final.tier
    else:
        assert any(text.startswith(answer.text) for text in texts)
    kinds = [type(event) for event in answer.events]
    assert kinds.count(Committed) == (1 if kinds else 0)
    assert kinds.count(Final) == (answer.error is None)
    assert not kinds or kinds[0] is Committed
    assert Delta not in kinds[:1]
    if tier == "edge_only":
        assert above.requests == []
    if tier == "cloud_only":
        assert local.requests == []
    assert len(local.requests) <= 2
    assert len({sent.idempotency_key for sent in above.requests}) <= 1
    assert (local.slots_used, above.slots_used) == (0, 0)
