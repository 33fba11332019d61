"""An in-memory InferenceService that keeps slots, answers from a script and can fail on order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from wire.description import Description, ModelInfo
from wire.errors import WeirError
from wire.messages import Committed, Delta, Final, GenerateEvent, GenerateRequest, Reason, Signals, Tier, Usage
from wire.service import Call


@dataclass
class FakeInference:
    """Answers with `words`, one Delta each, after `step_s` seconds; holds a slot while it does.

    `fail_before` is raised before the first event, `fail_after` = (n, error) after n deltas.
    `signals` says what each Delta carries; `hang` never ends by itself; `deltas` are given as they are. `releases`
    answer in turn, the last on; none: the model's.
    """

    tier: Tier = Tier.CLOUD
    words: tuple[str, ...] = ("one", " two", " three")
    step_s: float = 0.0
    turns: asyncio.Semaphore | None = None  # a word waits for its turn instead
    fail_before: WeirError | None = None
    fail_after: tuple[int, WeirError] | None = None
    signals: tuple[Signals, ...] = ()
    hang: bool = False
    reason: Reason = Reason.CLOUD_ONLY
    final: Final | None = None
    deltas: tuple[Delta, ...] = ()  # in place of words
    model: ModelInfo = field(default_factory=lambda: ModelInfo("fake", "fake@1.0.0+0", capabilities=("stream",)))
    ready: bool = True
    releases: tuple[str, ...] = ()
    active_releases: dict[str, str] = field(default_factory=dict)

    requests: list[GenerateRequest] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    slots_used: int = 0
    finished: int = 0
    left: int = 0

    async def generate(self, request: GenerateRequest, call: Call) -> AsyncGenerator[GenerateEvent, None]:
        releases = self.releases or (self.model.release,)
        release = releases[min(len(self.requests), len(releases) - 1)]
        self.requests.append(request)
        self.calls.append(call)
        if self.fail_before is not None:
            raise self.fail_before
        self.slots_used += 1
        done = False
        try:
            yield Committed(self.tier, self.reason, request.request_id, release)
            for index, word in enumerate(() if self.deltas else self.words):
                await (self.turns.acquire() if self.turns is not None else asyncio.sleep(self.step_s))
                if self.fail_after is not None and index == self.fail_after[0]:
                    raise self.fail_after[1]
                signals = self.signals[min(index, len(self.signals) - 1)] if self.signals else None
                yield Delta(word, (index,), (-0.1,), signals)
            for delta in self.deltas:
                await asyncio.sleep(self.step_s)
                yield delta
            while self.hang:
                await asyncio.sleep(0.01)
            yield self.final or Final(
                "stop",
                Usage(3, len(self.words)),
                self.tier,
                release=release,
                reason=self.reason,
                request_id=request.request_id,
                node="fake",
                signals=self.signals[-1] if self.signals else None,
            )
            done = True
            self.finished += 1
        finally:
            self.slots_used -= 1
            if not done:
                self.left += 1

    async def describe(self, call: Call, probe_bytes: int = 0) -> Description:
        if self.fail_before is not None:
            raise self.fail_before
        return Description(
            "fake",
            self.tier,
            models=(self.model,),
            ready=self.ready,
            active_releases=self.active_releases,
            padding=b"\0" * probe_bytes,
        )
