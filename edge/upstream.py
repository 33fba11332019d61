"""What the node knows of its upstream: link, speed, breaker, what it serves, the escalation budget.

Fed by three sources: the client's report of every finished call (`on_exchange`: the link), the
outcome of escalations (the breaker, the upstream's speed, and the link where the upstream says how
long it worked), and Describe answers (what it serves, whether it is ready). All state is the router's
immutable values; this holds the latest and tells the sink when one changed its condition. Must not
know: how calls are made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from edge.events import Sink
from edge.ports import Clock
from router.breaker import Breaker, BreakerSettings
from router.decision import LinkView, UpstreamView
from router.events import BreakerChanged, LinkChanged, link_condition
from router.latency import LatencyEstimate
from router.network import NetworkEstimate, NetworkSettings
from wire.messages import Description, Final, ModelInfo, Tier
from wire.service import Exchange

_MINUTE_S = 60.0
_UNREACHED = ("UNAVAILABLE", "DEADLINE_EXCEEDED")
# What an upstream does one after the other before its first token, as a Final's timings name it.
_BEFORE_FIRST_TOKEN = ("gateway_queue", "host_queue", "engine_tokenize", "engine_queue", "engine_prefill")


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """Where the upstream is and how it is judged. An empty target: there is none."""

    target: str = ""
    model: str = ""
    network: NetworkSettings = field(default_factory=NetworkSettings)
    breaker: BreakerSettings = field(default_factory=BreakerSettings)
    escalations_per_minute: float | None = None


class UpstreamState:
    """Satisfies edge.ports.Outlook and wire.service.ExchangeObserver."""

    def __init__(self, settings: UpstreamSettings, sink: Sink, clock: Clock) -> None:
        self._settings, self._sink, self._clock = settings, sink, clock
        self._network = NetworkEstimate(settings.network)
        self._breaker = Breaker(settings.breaker)
        self._latency = LatencyEstimate()
        self._description: Description | None = None
        self._heard = False
        self._escalations: deque[float] = deque()
        self._condition = link_condition(self._network.view(clock()))

    @property
    def description(self) -> Description | None:
        """What the upstream last said of itself."""
        return self._description

    @property
    def heard(self) -> bool:
        """Whether it answered when it was last asked who it is."""
        return self._heard

    @property
    def network(self) -> NetworkEstimate:
        return self._network

    # --- edge.ports.Outlook

    def link(self) -> LinkView:
        return self._network.view(self._clock())

    def view(self, hops_left: int) -> UpstreamView:
        model = self._model()
        ready = self._description is None or self._description.ready
        return UpstreamView(
            configured=bool(self._settings.target),
            admits=ready and self._breaker.admits(self._clock()),
            capabilities=None if model is None else frozenset(model.capabilities),
            first_token_s=self._latency.first_token_s,
            per_token_s=self._latency.per_token_s,
            hops_left=hops_left,
        )

    def budget_left(self) -> float | None:
        most = self._settings.escalations_per_minute
        if most is None:
            return None
        while self._escalations and self._escalations[0] < self._clock() - _MINUTE_S:
            self._escalations.popleft()
        return most - len(self._escalations)

    def model(self, name: str) -> ModelInfo | None:
        return self._model(name)

    def forward_as(self, name: str) -> str:
        if self._settings.model:
            return self._settings.model
        model = self._model(name)
        return name if model is not None and model.name == name else ""

    def is_node(self) -> bool:
        return self._description is not None and self._description.tier is Tier.EDGE

    def started(self) -> None:
        if self._settings.escalations_per_minute is not None:
            self._escalations.append(self._clock())
        self._move_breaker(lambda breaker, now: breaker.started(now))

    def succeeded(self, final: Final, first_s: float, total_s: float, sent_bytes: int) -> None:
        self._move_breaker(lambda breaker, now: breaker.succeeded(now))
        # The router adds the link by itself, so the upstream's own work is what is kept here.
        work_s = _work_before_first_token_s(final)
        if work_s is None:
            own_first_s = max(first_s - (self.link().rtt_s or 0.0), 0.0)
        else:
            own_first_s = work_s
            self._learn_round_trip(first_s - work_s, sent_bytes)
        own_total_s = own_first_s + max(total_s - first_s, 0.0)
        self._latency = self._latency.after(own_first_s, own_total_s, final.usage.completion_tokens)

    def failed(self) -> None:
        self._move_breaker(lambda breaker, now: breaker.failed(now))

    def abandoned(self) -> None:
        self._move_breaker(lambda breaker, now: breaker.abandoned(now))

    # --- the link

    def on_exchange(self, exchange: Exchange) -> None:
        """Every finished call. Only Describe tells of the link by its time alone: it waits for no work."""
        now = self._clock()
        if exchange.method.endswith("Describe"):
            if exchange.code in _UNREACHED:
                self._move_network(self._network.failed(now))
            elif exchange.code == "OK":
                seconds = exchange.total_ms / 1e3
                self._move_network(self._network.probe(exchange.bytes_received, seconds, now))
        elif exchange.first_response_ms is not None:
            self._move_network(self._network.reached())

    def probing(self) -> int:
        """How much padding the Describe that is about to be sent should ask for."""
        return self._network.probe_bytes(self._clock())

    def described(self, description: Description | None) -> None:
        """What a Describe answered; None when it was not answered: then nothing is known but what it is."""
        self._heard = description is not None
        if description is not None:
            self._description = replace(description, padding=b"")
        elif self._description is not None:
            self._description = replace(self._description, ready=True, not_ready_reason="")

    # --- inside

    def _model(self, name: str = "") -> ModelInfo | None:
        models = self._description.models if self._description is not None else ()
        wanted = self._settings.model or name
        named = next((model for model in models if model.name == wanted), None)
        return named or (models[0] if models and not self._settings.model else None)

    def _learn_round_trip(self, on_the_link_s: float, sent_bytes: int) -> None:
        """From a call's time on the link, which its payload had a part in.

        Without a known rate a payload that is long enough to tell would pass for distance: it tells nothing.
        """
        rate = self.link().bytes_per_s
        if rate:
            on_the_link_s -= sent_bytes / rate
        elif sent_bytes >= self._settings.network.min_transfer_bytes:
            return
        if on_the_link_s > 0:
            self._move_network(self._network.round_trip(on_the_link_s, self._clock()))

    def _move_breaker(self, move: Callable[[Breaker, float], Breaker]) -> None:
        now = self._clock()
        before = self._breaker.at(now)
        self._breaker = after = move(before, now)
        if after.state is not before.state:
            self._sink.emit(BreakerChanged(now, self._settings.target, before.state, after.state, after.cooldown_s))

    def _move_network(self, network: NetworkEstimate) -> None:
        self._network = network
        view = self.link()
        condition = link_condition(view)
        if condition is not self._condition:
            self._sink.emit(LinkChanged(self._clock(), self._condition, condition, view))
            self._condition = condition


def _work_before_first_token_s(final: Final) -> float | None:
    """What the upstream says it spent before its first token; None where it does not say.

    One that passed the request on says how long the next one worked, and not how far away that is.
    """
    timings = final.timings_ms
    if "engine_prefill" not in timings or "upstream_first" in timings:
        return None
    return sum(timings.get(name, 0.0) for name in _BEFORE_FIRST_TOKEN) / 1e3
