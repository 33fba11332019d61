"""The whole node as one InferenceService: the cascade's answers, and a description of what stands here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

from edge.cascade import Cascade
from edge.judge import CascadeSettings
from edge.local import LocalState
from edge.upstream import UpstreamState
from runtime.version import weir_version
from wire.errors import Unavailable
from wire.messages import Description, GenerateEvent, GenerateRequest, Limits, ModelInfo, Tier
from wire.service import Call


class EdgeNode:
    """Satisfies wire.service.InferenceService."""

    def __init__(
        self,
        cascade: Cascade,
        settings: CascadeSettings,
        local: LocalState,
        upstream: UpstreamState,
        updating: Callable[[], str] = lambda: "",
    ) -> None:
        """`updating` says in a few words what is being done for an engine that has nothing to serve."""
        self._cascade, self._settings = cascade, settings
        self._local, self._upstream, self._updating = local, upstream, updating

    def generate(self, request: GenerateRequest, call: Call) -> AsyncGenerator[GenerateEvent, None]:
        """See InferenceService."""
        return self._cascade.generate(request, call)

    @property
    def ready(self) -> bool:
        """Whether requests can be answered now, by whichever tier."""
        return self._local.available or self._upstream_answers()

    async def describe(self, _call: Call, probe_bytes: int = 0) -> Description:
        """See InferenceService. Answered from what is known, without asking anybody."""
        served, settings = self._local.served, self._settings
        above = self._upstream.description
        return Description(
            settings.node,
            Tier.EDGE,
            version=weir_version(),
            models=() if served is None else (replace(served, capabilities=self._reachable(served)),),
            limits=Limits(
                settings.limits.max_prompt_bytes, settings.max_requests, settings.max_requests, settings.limits.max_hops
            ),
            active_releases={} if above is None else above.active_releases,
            ready=self.ready,
            not_ready_reason="" if self.ready else f"no engine ({self._why()}) and no upstream",
            padding=b"\0" * probe_bytes,
        )

    def _reachable(self, served: ModelInfo) -> tuple[str, ...]:
        """What a request to this node may need: what its engine serves, and what the upstream is there for."""
        view = self._upstream.view(1)
        above = view.capabilities or frozenset() if view.configured else frozenset()
        return (*served.capabilities, *sorted(above.difference(served.capabilities)))

    def _why(self) -> str:
        return "; ".join(filter(None, (self._local.detail, self._updating())))

    def _upstream_answers(self) -> bool:
        view = self._upstream.view(1)
        return view.configured and view.admits and self._upstream.heard


class NoUpstream:
    """Stands where no upstream is configured; the router never sends anything here."""

    async def generate(self, _request: GenerateRequest, _call: Call) -> AsyncGenerator[GenerateEvent, None]:
        nothing: tuple[GenerateEvent, ...] = ()
        for event in nothing:  # makes this an async generator
            yield event
        raise Unavailable("this node has no upstream; set [edge] upstream")

    async def describe(self, _call: Call, _probe_bytes: int = 0) -> Description:
        raise Unavailable("this node has no upstream; set [edge] upstream")
