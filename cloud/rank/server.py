"""What rank 0 serves on its unix socket: Inference and EngineControl over one Engine."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator

from cloud.rank.spec import RankSpec
from cloud.rank.transformers_engine import TransformersEngine
from cloud.rank.weights import Held
from runtime.version import weir_version
from wire.channel import bind, open_server
from wire.description import Description, Limits
from wire.engine import Activation, EngineStatus, RankStatus
from wire.errors import NotFound, NotSupported
from wire.grpc_server import HealthReporter, add_engine_control, add_inference
from wire.messages import Committed, GenerateEvent, GenerateRequest, Reason, Tier
from wire.service import Call
from wire.validate import RequestLimits, check_request


class RankService:
    """Satisfies wire.service.InferenceService and EngineControl."""

    def __init__(self, engine: TransformersEngine, spec: RankSpec, held: Held) -> None:
        self._engine, self._spec, self._held = engine, spec, held
        self._limits = RequestLimits()

    async def generate(self, request: GenerateRequest, call: Call) -> AsyncGenerator[GenerateEvent, None]:
        """See InferenceService."""
        check_request(request, self._limits)
        if request.model not in ("", self._spec.name):
            raise NotFound(f"no model {request.model!r} here; this engine serves {self._spec.name!r}")
        call.deadline.check()
        events = self._engine.generate(request, call.deadline)
        committed = False
        try:
            async for event in events:
                if not committed:
                    committed = True
                    yield Committed(Tier.CLOUD, Reason.CLOUD_ONLY, request.request_id, self._engine.model.release)
                yield event
        finally:
            await events.aclose()  # type: ignore[attr-defined]

    async def describe(self, call: Call, probe_bytes: int = 0) -> Description:  # noqa: ARG002
        """See InferenceService."""
        health = self._engine.health()
        return Description(
            node=self._spec.node,
            tier=Tier.CLOUD,
            version=weir_version(),
            models=(self._engine.model,),
            limits=Limits(self._limits.max_prompt_bytes, self._spec.slots, self._spec.max_queue, self._limits.max_hops),
            ready=health.ok,
            not_ready_reason=health.detail,
            padding=b"\0" * probe_bytes,
        )

    async def activate(self, release_dir: str, precision: int, call: Call) -> Activation:  # noqa: ARG002
        """See EngineControl. An engine of the cloud holds one model for life."""
        raise NotSupported(
            "a cloud engine serves one release for as long as it runs; start another engine host for another release"
        )

    async def status(self, call: Call) -> EngineStatus:  # noqa: ARG002
        """See EngineControl. Lists this rank only; the host adds the others."""
        health = self._engine.health()
        model = self._engine.model
        return EngineStatus(
            state="ready" if health.ok else ("draining" if health.detail == "draining" else "down"),
            detail=health.detail,
            active=health.active,
            queued=health.queued,
            slots=health.slots,
            decode_steps=health.decode_steps,
            release=model.release,
            precision=model.precision,
            weight_digest=model.weight_digest,
            ranks=(RankStatus(0, os.getpid(), self._held.parameter_bytes, self._held.parameter_bytes_total),),
            pid=os.getpid(),
        )

    async def drain(self, call: Call) -> int:  # noqa: ARG002
        """See EngineControl."""
        return await self._engine.drain()


async def serve(service: RankService, spec: RankSpec) -> None:
    """Starts serving on the spec's socket; returns once it listens."""
    server = open_server()
    add_inference(server, service, spec.default_deadline_s)
    add_engine_control(server, service, spec.default_deadline_s)
    health = HealthReporter(server, ("Inference", "EngineControl"))
    spec.socket.unlink(missing_ok=True)
    bind(server, f"unix:{spec.socket}")
    await server.start()
    await health.set(True)
    _servers.append(server)


# grpc.aio stops a server that is collected; a rank's server lives as long as its process.
_servers: list[object] = []
