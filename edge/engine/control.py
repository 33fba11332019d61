"""What every engine process tells and does of itself, whatever its model's task: satisfies wire's EngineControl.

It also says who may come in. At any time at most as many are here as run at once and may wait, in whatever stage,
the wait for other weights included; one past that is refused at once. Once told to drain, it lets nobody else in.
A service asks `demand_ready` before it looks at a request, goes through `inside` with it, and finds there, by
`serving`, what answers.

Must not know: what a request asks for, how it is answered.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Generic

from edge.engine.making import M, R
from edge.engine.weights import Weights
from runtime.version import weir_version
from wire.description import Description, Limits
from wire.engine import Activation, EngineStatus
from wire.errors import InvalidRequest, NotFound, Overloaded, Unavailable
from wire.messages import Tier
from wire.service import Call
from wire.validate import RequestLimits


class Control(Generic[M, R]):
    """Over one engine's weights. Lives in one event loop."""

    def __init__(self, weights: Weights[M, R], node: str, slots: int, max_queue: int, what: str) -> None:
        """`slots` run at once. `what` comes here, in the plural: requests, texts."""
        self.weights, self.limits = weights, RequestLimits()
        self._node, self._slots, self._max_queue, self._what = node, slots, max_queue, what
        self._version = weir_version()
        self._here = 0
        self._draining = False

    def close(self) -> None:
        """Fails what runs as Unavailable and ends the weights' threads."""
        self._draining = True
        self.weights.close()

    def demand_ready(self) -> None:
        """Raises Unavailable where nothing is taken now."""
        if self._draining:
            raise Unavailable("this engine is draining; try again, another one takes over")
        if self.weights.state == "starting":
            self.weights.serving()

    @asynccontextmanager
    async def inside(self, call: Call) -> AsyncIterator[float]:
        """One of those who are here, and inside the gate; gives the seconds that took.

        Raises Overloaded, DeadlineExceeded.
        """
        most = self._slots + self._max_queue
        if self._here >= most:
            raise Overloaded(f"{self._here} {self._what} are here already, of at most {most}; try again later")
        self._here += 1
        try:
            async with self.weights.gate.passed(call.deadline) as waited_s:
                yield waited_s
        finally:
            self._here -= 1

    def serving(self, name: str) -> tuple[M, R]:
        """What answers requests for the model `name` now, empty for whichever it is; ask inside.

        Raises NotFound, Unavailable.
        """
        model, batcher = self.weights.serving()
        if name not in ("", model.info.name, model.info.release):
            raise NotFound(f"no model {name!r} here; this engine serves {model.info.name!r}")
        return model, batcher

    async def describe(self, call: Call, probe_bytes: int = 0) -> Description:  # noqa: ARG002 - the contract's
        """See InferenceService."""
        info, state, limits = self.weights.info, self._state(), self.limits
        return Description(
            self._node,
            Tier.EDGE,
            version=self._version,
            models=() if info is None else (info,),
            limits=Limits(limits.max_prompt_bytes, self._slots + self._max_queue, self._max_queue, limits.max_hops),
            ready=state == "ready",
            not_ready_reason="" if state == "ready" else state,
            padding=b"\0" * probe_bytes,
        )

    async def activate(self, release_dir: str, precision: int, call: Call) -> Activation:
        """See EngineControl."""
        if precision not in (4, 8):
            raise InvalidRequest(f"precision is {precision}; use 4 or 8")
        self.demand_ready()
        return await self.weights.put(Path(release_dir) if release_dir else None, precision, call.deadline)

    async def status(self, call: Call) -> EngineStatus:  # noqa: ARG002 - the contract's
        """See EngineControl."""
        weights, info = self.weights, self.weights.info
        status = EngineStatus(
            self._state(),
            weights.detail,
            active=weights.active,
            queued=weights.queued,
            slots=self._slots,
            decode_steps=weights.decode_steps,
            release=info.release if info else "",
            precision=info.precision if info else 0,
            weight_digest=info.weight_digest if info else "",
            pid=os.getpid(),
        )
        return weights.told(status)

    async def drain(self, call: Call) -> int:  # noqa: ARG002 - the contract's
        """See EngineControl."""
        self._draining = True
        return self._here

    def _state(self) -> str:
        state = self.weights.state
        return "draining" if self._draining and state != "down" else state
