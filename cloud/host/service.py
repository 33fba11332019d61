"""What an engine host serves: Inference and EngineControl, passed through to rank 0 under admission."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol

from cloud.admission import Admission
from cloud.config import EngineHostConfig
from runtime.version import weir_version
from wire.description import Description, Limits, ModelInfo
from wire.engine import Activation, EngineStatus, RankStatus
from wire.errors import NotFound, NotSupported, Unavailable, WeirError
from wire.messages import Final, GenerateEvent, GenerateRequest, Tier
from wire.service import Call, EngineControl, InferenceService
from wire.validate import RequestLimits, check_request

_STATUS_TIMEOUT_S = 1.0


class Reachable(Protocol):
    """Rank 0 while it answers."""

    @property
    def inference(self) -> InferenceService: ...
    @property
    def control(self) -> EngineControl: ...


class Ranks(Protocol):
    """What the service needs of cloud.host.supervisor.RankGroup."""

    @property
    def connection(self) -> Reachable | None: ...
    @property
    def model(self) -> ModelInfo | None: ...
    @property
    def state(self) -> str: ...
    @property
    def detail(self) -> str: ...
    @property
    def restarts(self) -> int: ...
    def ranks(self) -> tuple[RankStatus, ...]: ...


class HostService:
    """Satisfies wire.service.InferenceService and EngineControl.

    `drained` is called when draining begins, so that health can say so.
    """

    def __init__(self, config: EngineHostConfig, ranks: Ranks, drained: Callable[[], None]) -> None:
        self._config, self._ranks, self._on_drain = config, ranks, drained
        self._admission = Admission(config.max_batch, config.max_queue, f"engine host {config.node}")
        self._limits = RequestLimits()
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._open = 0

    @property
    def serving(self) -> bool:
        """New requests are taken and can be answered."""
        return not self._draining and self._ranks.state == "ready"

    async def generate(self, request: GenerateRequest, call: Call) -> AsyncGenerator[GenerateEvent, None]:
        """See InferenceService."""
        check_request(request, self._limits)
        if request.model not in ("", self._config.served_name):
            raise NotFound(f"no model {request.model!r} here; this host serves {self._config.served_name!r}")
        self._check_serving()
        self._open += 1
        self._idle.clear()
        try:
            async with self._admission.place(call.deadline) as waited_ms, aclosing(self._ask(request, call)) as events:
                async for event in events:
                    yield _with_queue_time(event, waited_ms)
        finally:
            self._open -= 1
            if not self._open:
                self._idle.set()

    def _check_serving(self) -> None:
        if self._draining:
            raise Unavailable("this engine host is draining; ask another one")
        if self._ranks.connection is None:
            detail = f" ({self._ranks.detail})" if self._ranks.detail else ""
            raise Unavailable(
                f"the ranks of {self._config.served_name} are {self._ranks.state}{detail}; try again soon"
            )

    async def _ask(self, request: GenerateRequest, call: Call) -> AsyncGenerator[GenerateEvent, None]:
        reachable = self._ranks.connection
        if reachable is None:
            # The group went down while the request waited.
            self._check_serving()
            return
        events = reachable.inference.generate(request, call)
        try:
            async for event in events:
                yield event
        except Unavailable as error:
            raise Unavailable(
                f"the ranks of {self._config.served_name} broke off ({self._ranks.detail or error.message}); "
                "they are restarted, try again soon"
            ) from error
        finally:
            await events.aclose()

    async def describe(self, call: Call, probe_bytes: int = 0) -> Description:  # noqa: ARG002
        """See InferenceService. Answers without the ranks, so also while they are down."""
        config, model = self._config, self._ranks.model
        reason = "" if self.serving else ("draining" if self._draining else f"{self._ranks.state} {self._ranks.detail}")
        return Description(
            node=config.node,
            tier=Tier.CLOUD,
            version=weir_version(),
            models=(model,) if model is not None else (ModelInfo(config.served_name),),
            limits=Limits(self._limits.max_prompt_bytes, config.max_batch, config.max_queue, self._limits.max_hops),
            ready=self.serving,
            not_ready_reason=reason.strip(),
            padding=b"\0" * probe_bytes,
        )

    async def status(self, call: Call) -> EngineStatus:
        """See EngineControl. Says the group's state even when rank 0 does not answer."""
        known, reachable = EngineStatus(state=self._ranks.state), self._ranks.connection
        if reachable is not None:
            try:
                known = await reachable.control.status(Call(call.deadline.capped(_STATUS_TIMEOUT_S)))
            except WeirError as error:
                known = EngineStatus(state="down", detail=f"rank 0 does not answer: {error.message}")
        state = "down" if known.state == "stopped" else known.state
        return replace(
            known,
            state="draining" if self._draining else state,
            detail=known.detail or self._ranks.detail,
            queued=known.queued + self._admission.queued,
            slots=self._config.max_batch,
            restarts=self._ranks.restarts,
            ranks=self._ranks.ranks(),
            pid=os.getpid(),
        )

    async def activate(self, release_dir: str, precision: int, call: Call) -> Activation:  # noqa: ARG002
        """See EngineControl."""
        raise NotSupported(
            "a cloud engine serves one release for as long as it runs; start another engine host for another release"
        )

    async def drain(self, call: Call) -> int:  # noqa: ARG002
        """See EngineControl."""
        self._draining = True
        self._on_drain()
        return self._open

    async def finish(self, within_s: float) -> int:
        """Drains and waits for the running requests, at most `within_s`; returns how many are left."""
        self._draining = True
        self._on_drain()
        try:
            async with asyncio.timeout(within_s):
                await self._idle.wait()
        except TimeoutError:
            return self._open
        return 0


def _with_queue_time(event: GenerateEvent, waited_ms: float) -> GenerateEvent:
    if not isinstance(event, Final):
        return event
    return replace(event, timings_ms={**event.timings_ms, "host_queue": waited_ms})
