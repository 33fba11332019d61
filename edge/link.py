"""The way to the upstream and what the upstream said of itself: shared by all models of a node.

The network estimate is fed by the time of Describe, which waits for no work, and by what escalations tell of
distance. The budget of escalations is the node's as well. Must not know: models, breakers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from edge.events import Sink
from edge.ports import Clock
from router.decision import LinkView
from router.events import LinkChanged, link_condition
from router.network import NetworkEstimate, NetworkSettings
from wire.description import Description
from wire.service import Exchange

_MINUTE_S = 60.0
_UNREACHED = ("UNAVAILABLE", "DEADLINE_EXCEEDED")


class UpstreamLink:
    """Satisfies wire.service.ExchangeObserver."""

    def __init__(
        self, network: NetworkSettings, sink: Sink, clock: Clock, escalations_per_minute: float | None = None
    ) -> None:
        self._settings, self._sink, self._clock = network, sink, clock
        self._network = NetworkEstimate(network)
        self._condition = link_condition(self._network.view(clock()))
        self._most, self._escalations = escalations_per_minute, deque[float]()
        self.description: Description | None = None  # what the upstream last said of itself
        self.heard = False  # whether it answered when it was last asked

    @property
    def network(self) -> NetworkEstimate:
        return self._network

    def view(self) -> LinkView:
        return self._network.view(self._clock())

    # --- the budget

    def budget_left(self) -> float | None:
        if self._most is None:
            return None
        while self._escalations and self._escalations[0] < self._clock() - _MINUTE_S:
            self._escalations.popleft()
        return self._most - len(self._escalations)

    def escalated(self) -> None:
        if self._most is not None:
            self._escalations.append(self._clock())

    # --- what feeds it

    def on_exchange(self, exchange: Exchange) -> None:
        """Every finished call. Only Describe tells of the link by its time alone: it waits for no work."""
        now = self._clock()
        if exchange.method.endswith("Describe"):
            if exchange.code in _UNREACHED:
                self._move(self._network.failed(now))
            elif exchange.code == "OK":
                self._move(self._network.probe(exchange.bytes_received, exchange.total_ms / 1e3, now))
        elif exchange.first_response_ms is not None:
            self._move(self._network.reached())

    def learn_round_trip(self, on_the_link_s: float, sent_bytes: int) -> None:
        """From a call's time on the link, which its payload had a part in.

        Without a known rate a payload that is long enough to tell would pass for distance: it tells nothing.
        """
        rate = self.view().bytes_per_s
        if rate:
            on_the_link_s -= sent_bytes / rate
        elif sent_bytes >= self._settings.min_transfer_bytes:
            return
        if on_the_link_s > 0:
            self._move(self._network.round_trip(on_the_link_s, self._clock()))

    def probing(self) -> int:
        """How much padding the Describe that is about to be sent should ask for."""
        return self._network.probe_bytes(self._clock())

    def described(self, description: Description | None) -> None:
        """What a Describe answered; None when it was not answered: then nothing is known but what it is."""
        self.heard = description is not None
        if description is not None:
            self.description = replace(description, padding=b"")
        elif self.description is not None:
            self.description = replace(self.description, ready=True, not_ready_reason="")

    def _move(self, network: NetworkEstimate) -> None:
        self._network = network
        view = self.view()
        condition = link_condition(view)
        if condition is not self._condition:
            self._sink.emit(LinkChanged(self._clock(), self._condition, condition, view))
            self._condition = condition
