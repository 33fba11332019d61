"""The whole way on small random models: SDK → edge node → shaped link → gateway → engine host, by the real commands.

Edge and cloud are started once for the file. The edge's calibrator is unsure of everything, so that
what is not held back by a constraint goes up.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.integration.cloud_process import talkative_model
from tests.integration.edge_process import calibrated_release
from weir.demo.scene import NARROW, WIDE, Props, Scene, stage
from wire.deadline import Deadline
from wire.grpc_client import InferenceClient
from wire.messages import Committed, Delta, Final, GenerateEvent, GenerateRequest, Message, Sampling
from wire.service import Call

UNSURE = -1.0
LONG, LONGEST = 200, 400
ATTEMPTS = 5
DEADLINE_S = 30.0
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def scene(tiny_release: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    root = tmp_path_factory.mktemp("cascade")
    calibrated_release(tiny_release, root / "release", "1.0.0", UNSURE)
    props = Props(
        root / "release",
        talkative_model(root / "cloud"),
        "tiny-cloud",
        # At 8 bits an answer is the same to the last bit whoever runs beside it; at 4 not (docs/numerics.md).
        edge_settings={"context_length": 512, "probe_interval_s": 0.5, "precision": "8"},
        engine_settings={"context_length": 512},
    )
    (root / "logs").mkdir()
    async with stage(props, root / "logs") as running:
        yield running
    assert running.troupe.left_over() == []


async def test_what_the_edge_is_unsure_of_is_answered_by_the_cloud(scene: Scene) -> None:
    answer = await scene.edge.generate("Where is my parcel?", max_tokens=12, temperature=0.0)
    assert (answer.tier, answer.reason) == ("cloud", "low_confidence")
    assert answer.text
    assert (answer.confidence or 1.0) < (answer.threshold or 0.0)
    assert answer.release.startswith("tiny-cloud@")
    assert answer.hops >= 1
    assert {"edge_total", "upstream_total", "total"} <= set(answer.timings_ms)


async def test_a_constraint_keeps_a_request_where_the_caller_wants_it(scene: Scene) -> None:
    at_home = await scene.edge.generate("Where is my parcel?", max_tokens=8, tier="edge_only")
    up = await scene.edge.generate("Where is my parcel?", max_tokens=8, tier="cloud_only")
    assert (at_home.tier, at_home.reason) == ("edge", "edge_only")
    assert at_home.weight_digest
    assert (up.tier, up.reason) == ("cloud", "cloud_only")


async def test_the_cloud_answers_the_same_through_the_edge_as_by_itself(scene: Scene) -> None:
    through = await scene.edge.generate("Cancel my order.", max_tokens=16, temperature=0.0, tier="cloud_only")
    itself = await scene.gateway.generate("Cancel my order.", max_tokens=16, temperature=0.0)
    assert through.text == itself.text


@pytest.mark.parametrize("tier", ["cloud_only", "auto", "edge_only"])
async def test_streaming_is_real_from_end_to_end(scene: Scene, tier: str) -> None:
    # An answer of the tiny edge takes a tenth of a second, which a busy machine may add to its first word:
    # one of a few must do. An answer that is collected first never does.
    shares = []
    while len(shares) < ATTEMPTS and min(shares, default=1.0) >= 0.5:
        stream = scene.edge.stream("Tell me more.", max_tokens=LONG, temperature=0.0, tier=tier)  # type: ignore[arg-type]
        pieces = [piece async for piece in stream]
        answer = stream.final
        assert answer.usage.completion_tokens >= 16
        assert len(pieces) > 4
        shares.append((answer.first_chunk_ms or answer.total_ms) / answer.total_ms)
    assert min(shares) < 0.5


async def test_answers_pass_a_link_with_delay_and_pay_for_it(scene: Scene) -> None:
    scene.link.shape(NARROW)
    try:
        answer = await scene.edge.generate("Where is my parcel?", max_tokens=8, tier="cloud_only", deadline_s=30)
    finally:
        scene.link.shape(WIDE)
    assert answer.tier == "cloud"
    assert answer.total_ms >= 2 * NARROW.delay_s * 1e3


async def test_a_cut_link_gives_degraded_answers_and_a_restored_one_escalates_again(scene: Scene) -> None:
    await scene.link.cut()
    try:
        answer = await scene.edge.generate("Where is my parcel?", max_tokens=8, deadline_s=20)
    finally:
        await scene.link.restore()
    assert (answer.tier, answer.degraded, answer.wanted_reason) == ("edge", True, "low_confidence")
    assert answer.reason in ("offline", "breaker_open", "upstream_error")
    await scene.troupe.until("escalation", scene.escalates, 30.0)


async def _events(client: InferenceClient, text: str) -> list[GenerateEvent]:
    request = GenerateRequest(messages=(Message("user", text),), sampling=Sampling(max_tokens=LONGEST, temperature=0.0))
    return [event async for event in client.generate(request, Call(Deadline.after(DEADLINE_S)))]


async def test_a_rank_killed_during_escalations_loses_no_request_and_answers_none_twice(scene: Scene) -> None:
    texts = ("Where is my parcel?", "Cancel my order.", "Tell me more.")
    at_home = [await scene.edge.generate(text, max_tokens=LONGEST, temperature=0.0, tier="edge_only") for text in texts]
    before = await scene.engine.status(Call(Deadline.after(5)))
    client = InferenceClient(scene.edge.target)
    try:
        began = time.monotonic()
        asking = [asyncio.create_task(_events(client, text)) for text in texts]
        async with asyncio.timeout(DEADLINE_S):
            while (await scene.engine.status(Call(Deadline.after(5)))).active < len(texts):
                assert not any(task.done() for task in asking), "the cloud answered before it could be killed"
        os.kill(before.ranks[1].pid, signal.SIGKILL)
        answers = await asyncio.gather(*asking)
        assert time.monotonic() - began < DEADLINE_S
    finally:
        await client.close()
    for events, alone in zip(answers, at_home, strict=True):
        kinds = [type(event) for event in events]
        assert (kinds[0], kinds[-1]) == (Committed, Final)
        assert set(kinds[1:-1]) == {Delta}
        final = events[-1]
        assert isinstance(final, Final)
        assert (final.tier, final.degraded, final.wanted_reason) == ("edge", True, "low_confidence")
        assert "".join(event.text for event in events if isinstance(event, Delta)) == alone.text
    await scene.troupe.until("the ranks' return", scene.cloud_ready, 60.0)
    after = await scene.engine.status(Call(Deadline.after(5)))
    assert after.restarts == before.restarts + 1
    assert not {rank.pid for rank in before.ranks} & {rank.pid for rank in after.ranks}
    await scene.troupe.until("escalation", scene.escalates, 30.0)


async def test_killed_ranks_cost_no_answer_and_come_back_by_themselves(scene: Scene) -> None:
    await scene.kill_ranks()
    answer = await scene.edge.generate("Where is my parcel?", max_tokens=8, deadline_s=20)
    assert answer.text
    assert answer.degraded
    await scene.troupe.until("the ranks' return", scene.cloud_ready, 60.0)
    await scene.troupe.until("escalation", scene.escalates, 30.0)
