"""The cascade over scripted tiers: every reason, every way a tier can fail, and what the client sees."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from edge.judge import CascadeSettings
from edge.upstream import UpstreamSettings
from router.calibration import UNCALIBRATED_THRESHOLD
from router.decision import Policy
from tests.fakes.inference import FakeInference
from tests.fakes.node import (
    CLOUD_WORDS,
    EDGE_WORDS,
    PREFIX_THRESHOLD,
    THRESHOLD,
    FakeNode,
    at_prefix,
    cloud,
    engine,
    request,
    signals,
    soon,
    sure,
)
from wire.errors import (
    Conflict,
    ContextTooLong,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    Overloaded,
    PreconditionFailed,
    TooLarge,
    Unavailable,
)
from wire.messages import Committed, Context, Delta, Final, Message, Reason, ResponseFormat, Sampling, Tier, Usage

EDGE_TEXT, CLOUD_TEXT = "".join(EDGE_WORDS), "".join(CLOUD_WORDS)


async def test_a_confident_answer_stays_on_the_edge() -> None:
    node = await FakeNode(engine(0.9), cloud()).ready()
    answer = await node.ask(request(request_id="r"))
    final = answer.final
    assert answer.text == EDGE_TEXT
    assert answer.committed == Committed(Tier.EDGE, Reason.CONFIDENT, "r", "m@1.0.0+e")
    assert (final.tier, final.reason, final.degraded, final.hops) == (Tier.EDGE, Reason.CONFIDENT, False, 0)
    assert final.confidence == pytest.approx(0.9)
    assert final.threshold == pytest.approx(0.6)
    assert (final.release, final.node, final.request_id) == ("m@1.0.0+e", "edge", "r")
    assert {"total", "edge_total", "edge_first"} <= set(final.timings_ms)
    assert node.upstream is not None
    assert node.upstream.requests == []


async def test_a_wait_for_other_weights_does_not_count_as_their_slowness() -> None:
    steps = engine(0.9)
    steps.step_s = 0.01
    steps.final = Final("stop", Usage(3, 12), Tier.EDGE, precision=8, timings_ms={"changing": 60_000.0})
    node = await FakeNode(steps, cloud()).ready()
    await node.ask(request())
    assert node.local.latency(8).first_token_s is None, "it had its first word before the wait can have been over"
    steps.final = replace(steps.final, timings_ms={"changing": 5.0})
    await node.ask(request())
    first = node.local.latency(8).first_token_s
    assert first is not None
    assert 0.005 <= first < 0.5


async def test_an_unsure_answer_goes_up_with_its_draft() -> None:
    node = await FakeNode(engine(0.4), cloud()).ready()
    answer = await node.ask(request())
    final = answer.final
    assert answer.text == CLOUD_TEXT
    assert answer.committed.tier is Tier.CLOUD
    assert answer.committed.reason is Reason.LOW_CONFIDENCE
    assert (final.tier, final.reason, final.hops) == (Tier.CLOUD, Reason.LOW_CONFIDENCE, 1)
    assert final.confidence == pytest.approx(0.4)
    assert final.threshold == pytest.approx(0.6)
    assert final.draft_tokens_offered == len(EDGE_WORDS)
    assert {"total", "edge_total", "upstream_first", "upstream_total"} <= set(final.timings_ms)
    sent = node.upstream.requests[0]  # type: ignore[union-attr]
    assert (sent.hops, sent.model) == (1, "")
    assert sent.draft is not None
    assert sent.draft.token_ids == tuple(range(len(EDGE_WORDS)))
    assert len(sent.draft.logprobs) == len(EDGE_WORDS)
    assert (sent.draft.release, sent.draft.tokenizer_digest, sent.draft.calibration_id) == ("m@1.0.0+e", "t", "c")
    assert sent.idempotency_key


async def test_no_draft_goes_to_another_tokenizer_and_the_answer_says_so() -> None:
    above = cloud()
    above.model = replace(above.model, tokenizer_digest="other")
    node = await FakeNode(engine(0.4), above).ready()
    final = (await node.ask(request())).final
    assert above.requests[0].draft is None
    assert (final.draft_tokens_offered, final.draft_status) == (0, "mismatch")


class Picky(FakeInference):
    """Honours no draft."""

    async def generate(self, request, call):  # type: ignore[no-untyped-def, override]
        if request.draft is not None:
            self.requests.append(request)
            raise PreconditionFailed("serves another release; send it plainly")
        async for event in super().generate(request, call):
            yield event


async def test_a_refused_draft_is_followed_by_a_plain_request_under_the_same_key() -> None:
    above = Picky(Tier.CLOUD, CLOUD_WORDS, model=cloud().model)
    node = await FakeNode(engine(0.4), above).ready()
    answer = await node.ask(request(idempotency_key="k"))
    assert answer.text == CLOUD_TEXT
    assert [sent.draft is None for sent in above.requests] == [False, True]
    assert {sent.idempotency_key for sent in above.requests} == {"k"}
    assert (answer.final.draft_tokens_offered, answer.final.draft_status) == (0, "unsupported")


async def test_edge_only_stays_whatever_the_confidence() -> None:
    node = await FakeNode(engine(0.1), cloud()).ready()
    final = (await node.ask(request("edge_only"))).final
    assert (final.tier, final.reason, final.degraded) == (Tier.EDGE, Reason.EDGE_ONLY, False)
    assert node.upstream.requests == []  # type: ignore[union-attr]


async def test_private_requests_never_leave() -> None:
    settings = CascadeSettings(private_classes=frozenset({"health"}))
    node = await FakeNode(engine(0.1), cloud(), settings).ready()
    final = (await node.ask(request(context=Context(request_class="health")))).final
    assert (final.tier, final.reason) == (Tier.EDGE, Reason.PRIVACY)
    assert node.upstream.requests == []  # type: ignore[union-attr]


async def test_cloud_only_does_not_bother_the_edge() -> None:
    node = await FakeNode(engine(), cloud()).ready()
    final = (await node.ask(request("cloud_only"))).final
    assert (final.tier, final.reason, final.confidence) == (Tier.CLOUD, Reason.CLOUD_ONLY, None)
    assert final.edge_tokens_spent == 0
    assert node.engine.requests == []


async def test_cloud_only_without_an_upstream_is_refused_with_words() -> None:
    node = await FakeNode(engine()).ready()
    answer = await node.ask(request("cloud_only"))
    assert isinstance(answer.error, Unavailable)
    assert "upstream" in answer.error.message
    assert answer.events == []


async def test_without_an_upstream_an_unsure_answer_is_degraded() -> None:
    node = await FakeNode(engine(0.2)).ready()
    answer = await node.ask(request())
    final = answer.final
    assert answer.text == EDGE_TEXT
    assert (final.reason, final.degraded, final.wanted_reason) == (Reason.OFFLINE, True, Reason.LOW_CONFIDENCE)


async def test_an_upstream_that_refuses_is_tried_once_more_and_then_the_edge_answers_degraded() -> None:
    above = cloud()
    node = await FakeNode(engine(0.4), above).ready()
    above.fail_before = Unavailable("no ranks")
    answer = await node.ask(request())
    final = answer.final
    assert answer.text == EDGE_TEXT
    assert (final.tier, final.reason, final.degraded) == (Tier.EDGE, Reason.UPSTREAM_ERROR, True)
    assert final.wanted_reason is Reason.LOW_CONFIDENCE
    assert len(above.requests) == 2
    assert len({sent.idempotency_key for sent in above.requests}) == 1
    assert len(node.engine.requests) == 1
    assert "upstream_total" in final.timings_ms


@pytest.mark.parametrize("error", [Overloaded("full"), NotFound("model"), InvalidRequest("no")])
async def test_other_refusals_are_not_tried_again(error: Exception) -> None:
    above = cloud()
    node = await FakeNode(engine(0.4), above).ready()
    above.fail_before = error  # type: ignore[assignment]
    assert (await node.ask(request())).final.degraded
    assert len(above.requests) == 1


async def test_a_key_used_for_another_request_is_the_callers_fault_and_not_the_upstreams() -> None:
    above = cloud()
    node = await FakeNode(engine(0.4), above).ready()
    above.fail_before = Conflict("idempotency key 'k' was used for another request")
    for _ in range(5):
        assert isinstance((await node.ask(request("cloud_only"))).error, Conflict)
    above.fail_before = None
    assert (await node.ask(request())).final.tier is Tier.CLOUD


async def test_cloud_only_past_its_deadline_says_so() -> None:
    above = cloud()
    above.hang = True
    node = await FakeNode(engine(), above).ready()
    assert isinstance((await node.ask(request("cloud_only"), seconds=0.3)).error, DeadlineExceeded)


async def test_an_upstream_that_dies_halfway_costs_a_waiting_client_nothing() -> None:
    above = cloud()
    above.fail_after = (3, Unavailable("a rank was killed"))
    node = await FakeNode(engine(0.4), above).ready()
    answer = await node.ask(request())
    assert answer.text == EDGE_TEXT
    assert (answer.final.reason, answer.final.degraded) == (Reason.UPSTREAM_ERROR, True)
    assert len(above.requests) == 1
    assert len(node.engine.requests) == 1


async def test_an_upstream_that_dies_halfway_through_a_stream_is_an_error_and_nothing_is_repeated() -> None:
    above = cloud()
    above.fail_after = (3, Unavailable("a rank was killed"))
    node = await FakeNode(engine(0.4), above).ready()
    answer = await node.ask(request(rule="prefix:4"))
    assert answer.text == "".join(CLOUD_WORDS[:3])
    assert isinstance(answer.error, Unavailable)
    assert (answer.committed.tier, answer.committed.release) == (Tier.CLOUD, "big@1.0.0+c")


async def test_an_upstream_that_hangs_leaves_time_for_the_edges_answer() -> None:
    above = cloud()
    above.hang = True
    node = await FakeNode(engine(0.4), above).ready()
    began = time.monotonic()
    answer = await node.ask(request(), seconds=1.0)
    assert time.monotonic() - began < 1.0
    assert answer.text == EDGE_TEXT
    assert (answer.final.reason, answer.final.degraded) == (Reason.UPSTREAM_ERROR, True)
    assert above.slots_used == 0


async def test_a_hopeless_answer_is_given_up_early_and_its_slot_is_free() -> None:
    local = engine(0.01)
    node = await FakeNode(local, cloud()).ready()
    answer = await node.ask(request())
    assert answer.text == CLOUD_TEXT
    assert answer.final.reason is Reason.EARLY_STOP
    assert answer.final.draft_tokens_offered == answer.final.edge_tokens_spent == 4
    assert (local.left, local.slots_used) == (1, 0)


async def test_an_early_stop_whose_escalation_fails_runs_on_the_edge_after_all() -> None:
    above = cloud()
    node = await FakeNode(engine(0.01), above).ready()
    above.fail_before = Unavailable("gone")
    answer = await node.ask(request())
    assert answer.text == EDGE_TEXT
    assert (answer.final.reason, answer.final.degraded) == (Reason.UPSTREAM_ERROR, True)
    assert len(node.engine.requests) == 2
    assert answer.final.edge_tokens_spent == 4, "of the attempt that was given up; those of the answer are in its usage"


async def test_a_choice_has_no_confidence_that_was_fitted_on_text() -> None:
    """Its signals are of one step over the options: a calibrator of text would take them for something else."""
    form = ResponseFormat("choice", choices=("yes", "no"))
    local = engine(0.9)
    local.model = replace(local.model, capabilities=(*local.model.capabilities, "choice"))
    alone = await FakeNode(local).ready()
    final = (await alone.ask(request(response_format=form))).final
    assert (final.tier, final.confidence, final.threshold) == (Tier.EDGE, None, UNCALIBRATED_THRESHOLD)
    assert (final.reason, final.degraded, final.wanted_reason) == (Reason.OFFLINE, True, Reason.LOW_CONFIDENCE)
    stays = (await alone.ask(request("edge_only", response_format=form))).final
    assert (stays.reason, stays.degraded, stays.confidence) == (Reason.EDGE_ONLY, False, None)


async def test_what_the_edge_cannot_do_goes_up() -> None:
    node = await FakeNode(engine(), cloud()).ready()
    final = (await node.ask(request(response_format=ResponseFormat("json_object")))).final
    assert (final.tier, final.reason) == (Tier.CLOUD, Reason.CAPABILITY)
    assert node.engine.requests == []


async def test_what_nobody_can_do_is_the_callers_error() -> None:
    node = await FakeNode(engine()).ready()
    answer = await node.ask(request(response_format=ResponseFormat("json_object")))
    assert isinstance(answer.error, InvalidRequest)
    assert "json_schema" in answer.error.message


async def test_while_the_engine_is_away_requests_are_pre_routed() -> None:
    local = engine()
    node = await FakeNode(local, cloud()).ready()
    local.fail_before = Unavailable("killed")
    first = (await node.ask(request())).final
    assert (first.tier, first.reason) == (Tier.CLOUD, Reason.CAPABILITY)
    second = (await node.ask(request())).final
    assert (second.tier, second.reason) == (Tier.CLOUD, Reason.PRE_ROUTED)
    assert len(local.requests) == 1
    local.fail_before = None
    await node.local.refresh()
    assert (await node.ask(request())).final.tier is Tier.EDGE


async def test_with_both_tiers_gone_the_client_is_told_why() -> None:
    local, above = engine(), cloud()
    node = await FakeNode(local, above).ready()
    local.fail_before = Unavailable("the engine was killed")
    above.fail_before = Unavailable("the cloud was killed")
    answer = await node.ask(request())
    assert isinstance(answer.error, Unavailable)
    assert "the engine was killed" in answer.error.message
    assert "the cloud was killed" in answer.error.message
    assert answer.events == []


async def test_an_engine_that_breaks_off_before_the_commit_point_goes_unseen() -> None:
    local = engine(0.9)
    local.fail_after = (6, Unavailable("killed"))
    node = await FakeNode(local, cloud()).ready()
    answer = await node.ask(request())
    assert answer.text == CLOUD_TEXT
    assert answer.final.reason is Reason.CAPABILITY


async def test_an_engine_that_breaks_off_after_the_commit_point_is_an_error() -> None:
    local = engine(0.9)
    local.fail_after = (6, Unavailable("killed"))
    node = await FakeNode(local, cloud()).ready()
    answer = await node.ask(request(rule="prefix:4"))
    assert isinstance(answer.error, Unavailable)
    assert answer.text == "".join(EDGE_WORDS[:6])
    assert node.upstream.requests == []  # type: ignore[union-attr]


async def test_a_full_engine_escalates_and_says_it_is_full_where_that_is_impossible() -> None:
    local = engine()
    node = await FakeNode(local, cloud()).ready()
    local.fail_before = Overloaded("the queue is full")
    assert (await node.ask(request())).final.tier is Tier.CLOUD
    alone = await FakeNode(local).ready()
    alone.local.failed()
    local.fail_before = None
    await alone.local.refresh()
    local.fail_before = Overloaded("the queue is full")
    answer = await alone.ask(request())
    assert isinstance(answer.error, Overloaded)


async def test_a_context_too_long_for_the_edge_may_fit_the_cloud() -> None:
    local = engine()
    node, alone = await FakeNode(local, cloud()).ready(), await FakeNode(local).ready()
    local.fail_before = ContextTooLong("4000 tokens; at most 2048")
    assert (await node.ask(request())).final.tier is Tier.CLOUD
    answer = await alone.ask(request())
    assert isinstance(answer.error, ContextTooLong)
    assert node.local.available


async def test_too_little_time_for_the_upstream_is_a_degraded_answer() -> None:
    node = await FakeNode(engine(0.4), cloud()).ready()
    node.state.succeeded(Final("stop", Usage(1, 10), Tier.CLOUD), 3.0, 12.0, 0)
    final = (await node.ask(request(), seconds=5.0)).final
    assert (final.reason, final.degraded, final.wanted_reason) == (Reason.DEADLINE, True, Reason.LOW_CONFIDENCE)
    assert node.upstream.requests == []  # type: ignore[union-attr]


async def test_an_escalation_tells_the_link_where_the_upstream_says_how_long_it_worked() -> None:
    above = cloud()
    above.step_s = 0.02
    above.final = Final("stop", Usage(3, 6), Tier.CLOUD, timings_ms={"host_queue": 5.0, "engine_prefill": 10.0})
    node = await FakeNode(engine(0.4), above).ready()
    assert node.state.link().rtt_s is None
    assert (await node.ask(request())).final.tier is Tier.CLOUD
    assert 0 < (node.state.link().rtt_s or 0.0) < 1
    assert node.state.view(1).first_token_s == pytest.approx(0.015)


async def test_the_breaker_opens_and_closes_again() -> None:
    above = cloud()
    node = await FakeNode(engine(0.4), above).ready()
    above.fail_before = Unavailable("gone")
    for _ in range(2):
        assert (await node.ask(request())).final.reason is Reason.UPSTREAM_ERROR
    asked = len(above.requests)
    final = (await node.ask(request())).final
    assert (final.reason, final.degraded) == (Reason.BREAKER_OPEN, True)
    assert len(above.requests) == asked
    above.fail_before = None
    await asyncio.sleep(0.35)
    assert (await node.ask(request())).final.tier is Tier.CLOUD
    changes = [(event.before, event.after) for event in node.events.of("BreakerChanged")]  # type: ignore[union-attr]
    assert changes == [("closed", "open"), ("half_open", "closed")]


async def test_an_upstream_that_says_it_is_not_ready_is_left_alone() -> None:
    above = cloud()
    above.ready = False
    node = await FakeNode(engine(0.4), above).ready()
    assert (await node.ask(request())).final.reason is Reason.BREAKER_OPEN
    assert above.requests == []


async def test_a_spent_budget_is_a_degraded_answer() -> None:
    node = await FakeNode(
        engine(0.4), cloud(), upstream_settings=UpstreamSettings("cloud:1", escalations_per_minute=1)
    ).ready()
    assert (await node.ask(request())).final.tier is Tier.CLOUD
    final = (await node.ask(request())).final
    assert (final.reason, final.degraded) == (Reason.BUDGET, True)


async def test_a_faster_upstream_is_preferred_where_the_operator_says_so() -> None:
    settings = CascadeSettings(policy=Policy(prefer_faster_upstream=True))
    node = await FakeNode(engine(), cloud(), settings).ready()
    node.local.answered(replace(Final("stop", Usage(1, 10), Tier.EDGE), precision=8), 0.5, 2.0)
    node.state.succeeded(Final("stop", Usage(1, 10), Tier.CLOUD), 0.01, 0.05, 0)
    for _ in range(3):
        node.state._link._move(node.state.network.round_trip(0.001, time.monotonic()))
    node.state._link._move(node.state.network.transfer(1 << 20, 0.1, time.monotonic()))
    assert (await node.ask(request())).final.reason is Reason.FASTER_UPSTREAM
    assert node.engine.requests == []


async def test_a_stream_is_committed_at_its_prefix_and_never_taken_back() -> None:
    local = engine(words=EDGE_WORDS)
    local.signals = (*sure(0.9, 4), *(signals(0.02, n) for n in range(5, 13)))
    local.step_s = 0.02
    node = await FakeNode(local, cloud()).ready()
    arrivals: list[float] = []
    began, text = time.monotonic(), ""
    final: Final | None = None
    async for event in node.generate(request(rule="prefix:4"), soon()):
        if isinstance(event, Delta):
            arrivals.append(time.monotonic() - began)
            text += event.text
        elif isinstance(event, Final):
            final = event
    assert text == EDGE_TEXT
    assert arrivals[0] < arrivals[-1] / 2
    assert final is not None
    assert (final.reason, final.degraded) == (Reason.CONFIDENT, False)
    # Of the moment it was committed, as the prefix's own calibrator has it.
    assert (final.confidence, final.threshold) == (pytest.approx(at_prefix(0.9)), pytest.approx(PREFIX_THRESHOLD))


async def test_a_stream_that_is_unsure_at_its_prefix_is_decided_at_the_end() -> None:
    node = await FakeNode(engine(0.4), cloud()).ready()
    answer = await node.ask(request(rule="prefix:4"))
    assert answer.text == CLOUD_TEXT
    assert answer.final.reason is Reason.LOW_CONFIDENCE
    assert answer.final.draft_tokens_offered == len(EDGE_WORDS)
    assert answer.final.confidence == pytest.approx(0.4)
    assert answer.final.threshold == pytest.approx(THRESHOLD)


async def test_each_commit_rule_goes_by_its_own_calibrator_and_threshold() -> None:
    """An answer that is too unsure to be shown at its prefix may be sure enough once it is whole."""
    confidence = 0.65
    assert at_prefix(confidence) < THRESHOLD < confidence < PREFIX_THRESHOLD
    for rule in ("end", "prefix:4"):
        node = await FakeNode(engine(confidence), cloud()).ready()
        final = (await node.ask(request(rule=rule))).final
        assert (final.tier, final.reason) == (Tier.EDGE, Reason.CONFIDENT)
        assert (final.confidence, final.threshold) == (pytest.approx(confidence), pytest.approx(THRESHOLD))


async def test_a_stream_that_is_unsure_but_cannot_go_up_is_shown_degraded() -> None:
    node = await FakeNode(engine(0.4)).ready()
    answer = await node.ask(request(rule="prefix:4"))
    assert answer.text == EDGE_TEXT
    assert (answer.final.reason, answer.final.degraded) == (Reason.OFFLINE, True)
    assert answer.final.confidence == pytest.approx(at_prefix(0.4))
    assert answer.final.threshold == pytest.approx(PREFIX_THRESHOLD)


@pytest.mark.parametrize("confidence", [0.9, 0.4])
async def test_leaving_frees_the_slots_of_both_tiers(confidence: float) -> None:
    local, above = engine(confidence), cloud()
    (local if confidence > 0.5 else above).hang = True
    node = await FakeNode(local, above).ready()
    asking = asyncio.create_task(node.ask(request()))
    await asyncio.sleep(0.05)
    assert node.cascade.running == 1
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert (local.slots_used, above.slots_used, node.cascade.running) == (0, 0, 0)
    assert local.left + above.left == 1


@pytest.mark.parametrize("tier", ["edge_only", "cloud_only"])
@pytest.mark.parametrize("steps", range(8))
async def test_leaving_at_the_very_moment_a_word_comes_frees_the_slot(tier: str, steps: int) -> None:
    local, above = engine(0.9), cloud()
    local.turns = above.turns = turns = asyncio.Semaphore(1)
    node = await FakeNode(local, above).ready()
    asking = asyncio.create_task(node.ask(request(tier)))
    while local.slots_used + above.slots_used == 0 or not turns.locked():
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    turns.release()
    for _ in range(steps):  # the word is on its way through the layers
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait({asking}, timeout=2)
    assert asking.cancelled()
    assert (local.slots_used, above.slots_used, node.cascade.running) == (0, 0, 0)


async def test_leaving_a_committed_stream_between_events_frees_the_slot() -> None:
    local = engine(0.9)
    node = await FakeNode(local, cloud()).ready()
    events = node.generate(request(rule="prefix:4"), soon())
    assert isinstance(await anext(events), Committed)
    await events.aclose()
    assert (local.slots_used, local.left, node.cascade.running) == (0, 1, 0)


async def test_hops_are_bounded() -> None:
    node = await FakeNode(engine(0.4), cloud()).ready()
    final = (await node.ask(request(hops=4))).final
    assert (final.tier, final.reason, final.degraded) == (Tier.EDGE, Reason.BUDGET, True)
    assert isinstance((await node.ask(request(hops=5))).error, PreconditionFailed)


async def test_a_client_gets_token_ids_and_signals_only_when_it_asks() -> None:
    node = await FakeNode(engine(), cloud()).ready()
    plain = await node.ask(request())
    asked = await node.ask(request(return_logprobs=True, return_signals=True))
    assert all(not e.token_ids and e.signals is None for e in plain.events if isinstance(e, Delta))
    assert all(e.token_ids and e.logprobs and e.signals for e in asked.events if isinstance(e, Delta))
    assert plain.final.signals is None
    assert asked.final.signals is not None


async def test_bad_requests_cost_no_tier_anything() -> None:
    settings = CascadeSettings(max_requests=1)
    node = await FakeNode(engine(), cloud(), settings).ready()
    assert isinstance((await node.ask(request(messages=()))).error, InvalidRequest)
    assert isinstance((await node.ask(request(model="other"))).error, NotFound)
    assert isinstance((await node.ask(request(sampling=Sampling(max_tokens=-1)))).error, InvalidRequest)
    assert isinstance((await node.ask(request(sampling=Sampling(temperature=float("nan"))))).error, InvalidRequest)
    assert isinstance((await node.ask(request(rule="soon"))).error, InvalidRequest)
    long = (Message("user", "x" * (2 << 20)),)
    assert isinstance((await node.ask(request(messages=long))).error, TooLarge)
    assert node.engine.requests == []
    events = node.generate(request(rule="prefix:4"), soon())
    await anext(events)
    assert isinstance((await node.ask(request())).error, Overloaded)
    await events.aclose()
    assert (await node.ask(request())).text == EDGE_TEXT
