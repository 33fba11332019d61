"""The engine hosts as this gateway sees them: who is there, what they serve, how busy they are.

Every host is asked at a fixed pace. A host that said no, said nothing, or was last heard of too long
ago takes no requests; what it served stays known, so that "down" and "unknown" are told apart.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from wire.deadline import Deadline
from wire.description import ModelInfo
from wire.errors import WeirError
from wire.service import Call, EngineControl, InferenceService


@dataclass(frozen=True, slots=True)
class HostView:
    """What the last probes said. `heard_at` is monotonic; None: never heard of."""

    models: tuple[ModelInfo, ...] = ()
    ready: bool = False
    reason: str = "not asked yet"
    busy: int = 0  # requests running and waiting there, ours and others'
    slots: int = 1
    heard_at: float | None = None


class EngineLink:
    """One engine host: how to reach it and what is known of it."""

    def __init__(self, target: str, inference: InferenceService, control: EngineControl) -> None:
        self.target, self.inference, self.control = target, inference, control
        self.view = HostView()
        self.in_flight = 0

    async def probe(self, timeout_s: float, now: Callable[[], float]) -> None:
        """Asks the host once and remembers the answer."""
        call = Call(Deadline.after(timeout_s))
        try:
            description, status = await asyncio.gather(self.inference.describe(call), self.control.status(call))
        except WeirError as error:
            self.failed(f"does not answer: {error.message}")
            return
        self.view = HostView(
            models=description.models,
            ready=description.ready,
            reason=description.not_ready_reason,
            busy=status.active + status.queued,
            slots=max(status.slots, 1),
            heard_at=now(),
        )

    def failed(self, reason: str) -> None:
        """Takes no requests until a probe says that it is ready again."""
        self.view = replace(self.view, ready=False, reason=reason)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Counts one request of ours as long as it runs."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def serves(self, model: str) -> bool:
        return any(info.name == model for info in self.view.models)

    @property
    def load(self) -> float:
        """Requests per place in the batch; the larger of what it reported and what we sent."""
        return max(self.view.busy, self.in_flight) / self.view.slots


class EnginePool:
    """All engine hosts of this gateway, in the order of the configuration."""

    def __init__(
        self,
        links: Sequence[EngineLink],
        interval_s: float,
        timeout_s: float,
        stale_after_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.links = tuple(links)
        self._interval_s, self._timeout_s, self._stale_after_s, self._now = interval_s, timeout_s, stale_after_s, now

    async def run(self) -> None:
        """Probes every host until cancelled. A slow host does not slow the others."""
        await asyncio.gather(*(self._probe(link) for link in self.links))

    async def _probe(self, link: EngineLink) -> None:
        while True:
            await link.probe(self._timeout_s, self._now)
            await asyncio.sleep(self._interval_s)

    def usable(self, link: EngineLink) -> bool:
        """Said that it is ready, not too long ago."""
        heard = link.view.heard_at
        return link.view.ready and heard is not None and self._now() - heard <= self._stale_after_s

    def pick(self, model: str, without: Collection[EngineLink] = ()) -> EngineLink | None:
        """The least loaded usable host that serves `model`; None when there is none."""
        candidates = [link for link in self.links if link not in without and link.serves(model) and self.usable(link)]
        return min(candidates, key=lambda link: link.load, default=None)

    def models(self) -> tuple[ModelInfo, ...]:
        """Everything that is or was served, each model and release once; usable hosts first."""
        found: dict[tuple[str, str], ModelInfo] = {}
        for link in sorted(self.links, key=lambda link: not self.usable(link)):
            for info in link.view.models:
                found.setdefault((info.name, info.release), info)
        return tuple(found.values())

    @property
    def ready(self) -> bool:
        return any(self.usable(link) for link in self.links)

    def why(self, model: str | None = None) -> str:
        """Why no host (that serves `model`) is usable, host by host."""
        links = [link for link in self.links if model is None or link.serves(model)] or list(self.links)
        if not links:
            return "no engine host is configured; set engines in [gateway]"
        return "; ".join(f"{link.target} {self._reason(link)}" for link in links)

    def _reason(self, link: EngineLink) -> str:
        if not link.view.ready:
            return link.view.reason or "is not ready"
        return "is ready" if self.usable(link) else "was not heard of lately"
