"""What the node knows of its upstream, for one of its models: speed, breaker, what it serves; link and budget.

Fed by three sources: the client's report of every finished call (`on_exchange`: the link), the
outcome of escalations (the breaker, the upstream's speed, and the link where the upstream says how
long it worked), and Describe answers (what it serves, whether it is ready). All state is the router's
immutable values; this holds the latest and tells the sink when one changed its condition. Link and budget are
edge.link's and shared by all models; speed and breaker are not, since an upstream may fail one model and be well with
another. Must not know: how calls are made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from edge.events import Sink
from edge.link import UpstreamLink
from edge.ports import Clock
from router import patience
from router.breaker import Breaker, BreakerSettings
from router.decision import LinkView, UpstreamView
from router.events import BreakerChanged
from router.latency import LatencyEstimate
from router.network import NetworkEstimate, NetworkSettings
from wire.description import Description, ModelInfo
from wire.messages import Final, Tier
from wire.service import Exchange

_GENERATE = "generate"
# What an upstream does one after the other before its first token, as a Final's timings name it.
_BEFORE_FIRST_TOKEN = ("gateway_queue", "host_queue", "engine_tokenize", "engine_queue", "engine_prefill")


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """Where the upstream is and how it is judged. An empty target: there is none.

    `model` is what the operator says our model is called there, `served` what it is called here.
    """

    target: str = ""
    model: str = ""
    served: str = ""
    network: NetworkSettings = field(default_factory=NetworkSettings)
    breaker: BreakerSettings = field(default_factory=BreakerSettings)
    escalations_per_minute: float | None = None


class UpstreamState:
    """Satisfies edge.ports.Outlook and wire.service.ExchangeObserver."""

    def __init__(
        self,
        settings: UpstreamSettings,
        sink: Sink,
        clock: Clock,
        link: UpstreamLink | None = None,
        task: Callable[[], str] = lambda: _GENERATE,
    ) -> None:
        """`link` is what other models of the node share; None: there are none. `task` is the model's, once known."""
        self._settings, self._sink, self._clock, self._task = settings, sink, clock, task
        self._link = link or UpstreamLink(settings.network, sink, clock, settings.escalations_per_minute)
        self._breaker = Breaker(settings.breaker)
        self._latency = LatencyEstimate()
        self._silences = 0  # that outlasted the usual since the last answer

    @property
    def description(self) -> Description | None:
        """What the upstream last said of itself."""
        return self._link.description

    @property
    def heard(self) -> bool:
        """Whether it answered when it was last asked who it is."""
        return self._link.heard

    @property
    def network(self) -> NetworkEstimate:
        return self._link.network

    # --- edge.ports.Outlook

    def link(self) -> LinkView:
        return self._link.view()

    def view(self, hops_left: int) -> UpstreamView:
        description, model = self.description, self._model()
        ready = description is None or description.ready
        return UpstreamView(
            configured=bool(self._settings.target),
            admits=ready and self._breaker.admits(self._clock()),
            capabilities=self._capabilities(model),
            first_token_s=self._latency.first_token_s,
            per_token_s=self._latency.per_token_s,
            hops_left=hops_left,
        )

    def budget_left(self) -> float | None:
        return self._link.budget_left()

    def model(self, name: str) -> ModelInfo | None:
        return self._model(name)

    def forward_as(self, name: str) -> str:
        if self._settings.model:
            return self._settings.model
        model = self._model(name)
        if model is None or model.name == name:
            return "" if model is None else name
        several = self.description is not None and len(self.description.models) > 1
        # A node with several models has no default; whoever else stands there chooses for itself.
        return model.name if several and self.is_node() else ""

    def is_node(self) -> bool:
        description = self.description
        return description is not None and description.tier is Tier.EDGE

    def started(self) -> None:
        self._link.escalated()
        self._move_breaker(lambda breaker, now: breaker.started(now))

    def succeeded(self, final: Final, first_s: float, total_s: float, sent_bytes: int) -> None:
        self._silences = 0
        self._move_breaker(lambda breaker, now: breaker.succeeded(now))
        # The router adds the link by itself, so the upstream's own work is what is kept here.
        work_s = _work_before_first_token_s(final)
        if work_s is None:
            own_first_s = max(first_s - (self.link().rtt_s or 0.0), 0.0)
        else:
            own_first_s = work_s
            self._link.learn_round_trip(first_s - work_s, sent_bytes)
        own_total_s = own_first_s + max(total_s - first_s, 0.0)
        self._latency = self._latency.after(own_first_s, own_total_s, final.usage.completion_tokens)

    def failed(self) -> None:
        self._move_breaker(lambda breaker, now: breaker.failed(now))

    def fell_silent(self, silent_s: float, usual_s: float | None, wordless_s: float = 0.0) -> None:
        self._silences += patience.outlasts(max(silent_s, wordless_s), usual_s)
        if patience.speaks_against(silent_s, usual_s, self._silences, wordless_s):
            self.failed()
        else:
            self.abandoned()

    def abandoned(self) -> None:
        self._move_breaker(lambda breaker, now: breaker.abandoned(now))

    # --- the link

    def on_exchange(self, exchange: Exchange) -> None:
        """See UpstreamLink."""
        self._link.on_exchange(exchange)

    def probing(self) -> int:
        """See UpstreamLink."""
        return self._link.probing()

    def described(self, description: Description | None) -> None:
        """See UpstreamLink."""
        self._link.described(description)

    # --- inside

    def _model(self, name: str = "") -> ModelInfo | None:
        """The upstream's model of that name, else, where none is configured, its first that does our model's task."""
        models = self.description.models if self.description is not None else ()
        wanted = self._settings.model or name or self._settings.served
        named = next((model for model in models if model.name == wanted), None)
        if named is not None or self._settings.model:
            return named
        return next((model for model in models if self._task() in model.tasks), None)

    def _capabilities(self, model: ModelInfo | None) -> frozenset[str] | None:
        """None while nothing is known; none at all where it is known that no model there does our model's task."""
        if model is not None:
            return frozenset(model.capabilities)
        others = self.description is not None and bool(self.description.models) and not self._settings.model
        return frozenset() if others and self._task() != _GENERATE else None

    def _move_breaker(self, move: Callable[[Breaker, float], Breaker]) -> None:
        now = self._clock()
        before = self._breaker.at(now)
        self._breaker = after = move(before, now)
        if after.state is not before.state:
            self._sink.emit(BreakerChanged(now, self._settings.target, before.state, after.state, after.cooldown_s))


def _work_before_first_token_s(final: Final) -> float | None:
    """What the upstream says it spent before its first token; None where it does not say.

    One that passed the request on says how long the next one worked, and not how far away that is.
    """
    timings = final.timings_ms
    if "engine_prefill" not in timings or "upstream_first" in timings:
        return None
    return sum(timings.get(name, 0.0) for name in _BEFORE_FIRST_TOKEN) / 1e3
