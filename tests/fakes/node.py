"""A node with fake tiers: the real cascade over scripted engine and upstream, and events kept in a list."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from edge.cascade import Cascade
from edge.events import Event
from edge.judge import CascadeParts, CascadeSettings
from edge.local import LocalState
from edge.node import NoUpstream
from edge.upstream import UpstreamSettings, UpstreamState
from router.breaker import BreakerSettings
from router.calibration import InForce, for_choices, in_force
from router.confidence import FEATURES, Calibrator
from router.decision import Policy
from tests.fakes.inference import FakeInference
from wire.deadline import Deadline
from wire.description import ModelInfo
from wire.errors import WeirError
from wire.messages import (
    Committed,
    Constraints,
    Delta,
    Final,
    GenerateEvent,
    GenerateRequest,
    Message,
    Reason,
    Signals,
    Tier,
    TierConstraint,
)
from wire.service import Call

CAPABILITIES = ("stream", "sample", "logprobs", "signals")
EDGE_MODEL = ModelInfo(
    "m", "m@1.0.0+e", capabilities=CAPABILITIES, tokenizer_digest="t", precision=8, calibration_id="c"
)
CLOUD_MODEL = ModelInfo("big", "big@1.0.0+c", capabilities=(*CAPABILITIES, "json_schema"), tokenizer_digest="t")
EDGE_WORDS = tuple(f" e{n}" for n in range(12))
CLOUD_WORDS = tuple(f" c{n}" for n in range(6))
THRESHOLD = 0.6
# At a prefix of 4 the same signals count for half the odds and are held against more than at the end.
PREFIX_ODDS, PREFIX_THRESHOLD = 0.5, 0.7
STOP_LEVELS = (0.0, 0.0, 0.05, 0.05)  # from 4 to 15 tokens


def signals(confidence: float, tokens: int) -> Signals:
    """Signals that the calibrator of finished answers turns into this confidence."""
    return Signals(tokens=tokens, min_logprob=math.log(confidence / (1 - confidence)))


def sure(confidence: float, tokens: int = len(EDGE_WORDS)) -> tuple[Signals, ...]:
    """The same confidence all along."""
    return tuple(signals(confidence, n + 1) for n in range(tokens))


def at_prefix(confidence: float) -> float:
    """What the calibrator of the prefix makes of signals of this confidence."""
    odds = PREFIX_ODDS * confidence / (1 - confidence)
    return odds / (1 + odds)


def calibrator(rule: str, threshold: float, odds: float = 1.0) -> Calibrator:
    """Reads nothing but the lowest log-prob, as the logit of the confidence, and makes so much of its odds."""
    ones, zeros = (1.0,) * len(FEATURES), (0.0,) * len(FEATURES)
    weights = tuple(float(name == "min_logprob") for name in FEATURES)
    bias = math.log(odds)
    return Calibrator(f"c-{rule}", 8, "any", rule, zeros, ones, weights, bias, threshold, stop_levels=STOP_LEVELS)


class FixedCalibrations:
    """Satisfies edge.ports.Calibrations with a calibrator of its own for the end and for a prefix of 4."""

    def in_force(self, release: str, precision: int, commit_prefix: int | None) -> InForce:
        known = (calibrator("end", THRESHOLD), calibrator("prefix:4", PREFIX_THRESHOLD, PREFIX_ODDS))
        return in_force(known, 8, "any", commit_prefix)

    def for_choices(self, release: str, precision: int) -> InForce:
        return for_choices((), precision, "any")


class Events:
    """Satisfies edge.events.Sink."""

    def __init__(self) -> None:
        self.seen: list[Event] = []

    def emit(self, event: Event) -> None:
        self.seen.append(event)

    def of(self, name: str) -> list[Event]:
        return [event for event in self.seen if type(event).__name__ == name]


@dataclass
class Answer:
    """What a client saw."""

    events: list[GenerateEvent] = field(default_factory=list)
    error: WeirError | None = None

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Delta))

    @property
    def final(self) -> Final:
        if self.error is not None:
            raise self.error
        assert isinstance(self.events[-1], Final)
        return self.events[-1]

    @property
    def committed(self) -> Committed:
        found = [event for event in self.events if isinstance(event, Committed)]
        assert len(found) == 1
        assert self.events[0] is found[0]
        return found[0]


def engine(confidence: float = 0.9, words: tuple[str, ...] = EDGE_WORDS) -> FakeInference:
    """An engine that is this sure of every answer."""
    return FakeInference(
        Tier.EDGE, words, signals=sure(confidence, len(words)), reason=Reason.EDGE_ONLY, model=EDGE_MODEL
    )


def cloud() -> FakeInference:
    return FakeInference(Tier.CLOUD, CLOUD_WORDS, model=CLOUD_MODEL)


class FakeNode:
    """Call `ready` first: it lets the node hear its engine and its upstream."""

    def __init__(
        self,
        local: FakeInference | None = None,
        upstream: FakeInference | None = None,
        settings: CascadeSettings | None = None,
        upstream_settings: UpstreamSettings | None = None,
    ) -> None:
        self.engine, self.upstream, self.events = local or engine(), upstream, Events()
        self.local = LocalState(self.engine, self.events, time.monotonic)
        judged = upstream_settings or UpstreamSettings(
            "cloud:1", breaker=BreakerSettings(max_consecutive=3, cooldown_s=0.3, max_cooldown_s=0.3)
        )
        self.state = UpstreamState(judged if upstream is not None else UpstreamSettings(), self.events, time.monotonic)
        parts = CascadeParts(
            self.engine,
            self.local,
            upstream or NoUpstream(),
            self.state,
            FixedCalibrations(),
            self.events,
            time.monotonic,
            lambda: 0.5,
        )
        self.cascade = Cascade(parts, settings or CascadeSettings(policy=Policy(deadline_margin_s=0.0)))

    async def ready(self) -> FakeNode:
        await self.local.refresh()
        if self.upstream is not None:
            self.state.described(await self.upstream.describe(soon()))
        return self

    async def ask(self, request: GenerateRequest, seconds: float = 10.0) -> Answer:
        """Everything a client sees of an answer."""
        answer = Answer()
        try:
            async with aclosing(self.generate(request, soon(seconds))) as events:
                async for event in events:
                    answer.events.append(event)
        except WeirError as error:
            answer.error = error
        return answer

    def generate(self, request: GenerateRequest, call: Call) -> AsyncGenerator[GenerateEvent, None]:
        return self.cascade.generate(request, call)


def soon(seconds: float = 10.0) -> Call:
    return Call(Deadline.after(seconds))


def request(tier: str = "auto", rule: str = "", **fields: object) -> GenerateRequest:
    constraints = Constraints(TierConstraint(tier), commit_rule=rule)
    plain = GenerateRequest(messages=(Message("user", "hi"),), constraints=constraints)
    return replace(plain, **fields)  # type: ignore[arg-type]
