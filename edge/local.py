"""What the node knows of its own engine process: what it serves, whether it is there, how fast it is.

`watch` asks the engine who it is at short intervals while it is away and at long ones while it is
there, so that a respawned engine is back in use by itself. Speeds are kept per precision: they are
what the precision plan compares.
"""

from __future__ import annotations

import asyncio

from edge.events import EngineChanged, Sink
from edge.ports import Clock
from router.decision import EdgeView
from router.latency import LatencyEstimate
from wire.classification import Classified
from wire.deadline import Deadline
from wire.description import ModelInfo
from wire.errors import WeirError
from wire.messages import Final
from wire.service import Call, InferenceService

_AWAY_S = 0.2
_THERE_S = 2.0
_DESCRIBE_S = 2.0
_TOKENS_WEIGHT = 0.1  # of the newest answer's length


class LocalState:
    """Satisfies edge.ports.Local."""

    def __init__(self, engine: InferenceService, sink: Sink, clock: Clock) -> None:
        self._engine, self._sink, self._clock = engine, sink, clock
        self._served: ModelInfo | None = None
        self._available = False
        self._detail = "the engine has not been heard yet"
        self._latency: dict[int, LatencyEstimate] = {}
        self._tokens: float | None = None
        self._last_answered = ""
        self._view: EdgeView | None = None  # until something changes: it is asked for at every token
        self._wake = asyncio.Event()

    @property
    def served(self) -> ModelInfo | None:
        return self._served

    @property
    def available(self) -> bool:
        return self._available

    @property
    def detail(self) -> str:
        """Why the engine is not available; empty when it is."""
        return self._detail

    def latency(self, precision: int) -> LatencyEstimate:
        """How fast the engine has been at a precision."""
        return self._latency.get(precision, LatencyEstimate())

    @property
    def usual_tokens(self) -> float | None:
        """How long answers have been of late, in tokens; None before the first."""
        return self._tokens

    @property
    def last_answered(self) -> str:
        """The release that gave the last answer; empty before the first."""
        return self._last_answered

    def view(self) -> EdgeView:
        if self._view is None:
            self._view = self._looked()
        return self._view

    def _looked(self) -> EdgeView:
        served = self._served
        latency = self.latency(served.precision if served is not None else 0)
        return EdgeView(
            available=self._available,
            capabilities=frozenset(served.capabilities) if served is not None else frozenset(),
            first_token_s=latency.first_token_s,
            per_token_s=latency.per_token_s,
        )

    def answered(self, final: Final, first_s: float | None, total_s: float) -> None:
        tokens = final.usage.completion_tokens
        self._view = None
        self._last_answered = final.release
        self._tokens = tokens if self._tokens is None else self._tokens + _TOKENS_WEIGHT * (tokens - self._tokens)
        if first_s is not None:
            estimate = self.latency(final.precision)
            self._latency[final.precision] = estimate.after(first_s, total_s, tokens)

    def labelled(self, answer: Classified, total_s: float) -> None:
        """A text was labelled, in this time: an answer of one token, after which there are none."""
        self._view = None
        self._last_answered, self._tokens = answer.release, 1.0
        estimate = self.latency(answer.precision).after(total_s, total_s, 2)
        self._latency[answer.precision] = estimate

    def failed(self) -> None:
        self._now(False, None, "the engine broke off or could not be reached")
        self._wake.set()

    async def refresh(self) -> None:
        """Asks the engine once what it serves."""
        try:
            description = await self._engine.describe(Call(Deadline.after(_DESCRIBE_S)))
        except WeirError as error:
            self._now(False, None, error.message)
            return
        served = description.models[0] if description.models else None
        there = description.ready and served is not None
        self._now(there, served, "" if there else description.not_ready_reason or "the engine serves no model yet")

    async def watch(self) -> None:
        """Keeps the picture fresh until cancelled."""
        while True:
            self._wake.clear()
            await self.refresh()
            try:
                async with asyncio.timeout(_THERE_S if self._available else _AWAY_S):
                    await self._wake.wait()
                await asyncio.sleep(_AWAY_S / 4)  # woken by a failure: a breath before asking
            except TimeoutError:
                continue

    def _now(self, available: bool, served: ModelInfo | None, detail: str) -> None:
        changed = available is not self._available
        self._view = None
        self._served = served or self._served
        self._available, self._detail = available, detail
        if changed:
            known = self._served or ModelInfo("")
            self._sink.emit(
                EngineChanged(self._clock(), available, known.release, known.precision, known.weight_digest, detail)
            )
