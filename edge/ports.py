"""What the cascade needs from the world around it, as Protocols.

The cascade itself knows no sockets, no clock and no generator of random numbers: all of them come in
here, so that tests put stateful fakes in their place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from router.calibration import InForce
from router.decision import EdgeView, LinkView, UpstreamView
from wire.description import ModelInfo
from wire.messages import Final
from wire.service import EngineControl, InferenceService

Clock = Callable[[], float]  # monotonic seconds
Uniform = Callable[[], float]  # a draw from [0, 1)


class Engine(InferenceService, EngineControl, Protocol):
    """The engine process of this node."""


class Local(Protocol):
    """What this node knows of its own engine."""

    @property
    def served(self) -> ModelInfo | None:
        """The model as the engine last described it; None before it ever did."""
        ...

    def view(self) -> EdgeView:
        """The engine as the router sees it now."""
        ...

    def answered(self, final: Final, first_s: float | None, total_s: float) -> None:
        """An answer of the engine took this long."""
        ...

    def failed(self) -> None:
        """The engine could not be reached, or broke off."""
        ...


class Outlook(Protocol):
    """What this node knows of its upstream, and its budget for it."""

    def link(self) -> LinkView:
        """The network as it is estimated now."""
        ...

    def view(self, hops_left: int) -> UpstreamView:
        """The upstream as the router sees it now."""
        ...

    def budget_left(self) -> float | None:
        """Escalations left; None without a budget."""
        ...

    def model(self, name: str) -> ModelInfo | None:
        """The upstream's model that answers for ours; None while that is unknown."""
        ...

    def forward_as(self, name: str) -> str:
        """What to call our model at the upstream; empty leaves it to the upstream."""
        ...

    def is_node(self) -> bool:
        """Whether the upstream is known to be a node like this one, with an upstream of its own to try again."""
        ...

    def started(self) -> None:
        """An escalation goes up; one of the four below follows."""
        ...

    def succeeded(self, final: Final, first_s: float, total_s: float, sent_bytes: int) -> None:
        """It was answered, in this time; about `sent_bytes` went up with it.

        `final` is as the upstream sent it: its timings tell work from distance.
        """
        ...

    def failed(self) -> None:
        """It failed in a way that speaks against the upstream."""
        ...

    def fell_silent(self, silent_s: float, usual_s: float | None, wordless_s: float = 0.0) -> None:
        """It was given up after so long a silence, where a first word takes `usual_s` of late.

        `wordless_s` is how long it had gone on in all, if no word came.
        """
        ...

    def abandoned(self) -> None:
        """It ended without telling anything about the upstream."""
        ...


class Calibrations(Protocol):
    """The calibrators of the releases on this node, for its CPU class."""

    def in_force(self, release: str, precision: int, commit_prefix: int | None) -> InForce:
        """Those of a release at a precision, for a commit point after that many tokens (None: the end)."""
        ...

    def for_choices(self, release: str, precision: int) -> InForce:
        """Those for the choice among given options, which are told from other signals than text is."""
        ...
