"""One request at one moment, with the figures that every rule looks at worked out once.

Whatever comes in, the figures here are sound: an invalid confidence is None (which counts as low,
never as easy), an invalid threshold is the most careful one, a broken latency is unknown.

Must not know: the rules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from router.decision import Moment, Observation, Policy, Request, State
from router.latency import Forecast, edge_forecast, known, token_count, upstream_forecast

EDGE_ONLY = "edge_only"
CLOUD_ONLY = "cloud_only"
_FOREVER_S = 1e9


@dataclass(frozen=True, slots=True)
class Case:
    """What a rule sees. `threshold` is the effective one for the moment; `edge` and `upstream` forecast.

    `upstream_least` is the upstream's least time: where nobody has an idea of the answer's length, its first
    token's alone, since the most that may be asked for says little of how much will come.
    """

    request: Request
    observation: Observation
    state: State
    policy: Policy
    now: float
    uniform: float
    confidence: float | None
    threshold: float
    deadline_left_s: float
    edge: Forecast
    upstream: Forecast
    upstream_least: Forecast

    @property
    def before(self) -> bool:
        return self.observation.moment is Moment.BEFORE

    @property
    def during(self) -> bool:
        return self.observation.moment is Moment.DURING

    @property
    def after(self) -> bool:
        return self.observation.moment is Moment.AFTER

    @property
    def confident(self) -> bool:
        """Whether the confidence reaches the threshold. No valid confidence never does."""
        return self.confidence is not None and self.confidence >= self.threshold

    @property
    def commit_reached(self) -> bool:
        """Whether enough tokens are there for the edge's answer to be shown."""
        prefix = self.request.commit_prefix
        return self.during and prefix is not None and self.observation.tokens >= prefix

    @property
    def commit_crossed(self) -> bool:
        """Whether this is the first look at or after the commit point."""
        prefix = self.request.commit_prefix
        return self.commit_reached and prefix is not None and self.observation.previous_tokens < max(prefix, 1)

    @property
    def edge_can_answer(self) -> bool:
        """Whether the edge is able and allowed to give an answer of its own."""
        edge = self.state.edge
        return (
            self.request.tier != CLOUD_ONLY
            and not self.observation.edge_failed
            and self.request.needs <= edge.capabilities
            and (edge.available or not self.before)
        )

    def numbers(self) -> Mapping[str, float]:
        """The figures behind a decision, for logs and for explaining it."""
        figures = {
            "threshold": self.threshold,
            "tokens": float(token_count(self.observation.tokens)),
            "deadline_left_s": self.deadline_left_s,
            "edge_s": self.edge.seconds,
            "upstream_s": self.upstream.seconds,
            "upstream_least_s": self.upstream_least.seconds,
            "upstream_s_complete": float(self.upstream.complete),
        }
        if self.confidence is not None:
            figures["confidence"] = self.confidence
        return figures


def make_case(
    request: Request, observation: Observation, state: State, policy: Policy, *, now: float, uniform: float
) -> Case:
    """Works the figures out. Never raises."""
    tokens, told = expected_tokens(request, observation), told_tokens(request, observation)
    payload = (
        token_count(request.prompt_bytes)
        + (known(policy.request_overhead_bytes) or 0.0)
        + (known(policy.draft_bytes_per_token) or 0.0) * token_count(observation.tokens)
    )
    upstream, carried = state.upstream, policy.answer_bytes_per_token
    return Case(
        request=request,
        observation=observation,
        state=state,
        policy=policy,
        now=now,
        uniform=uniform,
        confidence=_share(observation.confidence),
        threshold=effective_threshold(request, observation, policy),
        deadline_left_s=_deadline(observation.deadline_left_s),
        edge=edge_forecast(state.edge, tokens),
        upstream=upstream_forecast(state.link, upstream, payload, tokens, carried),
        upstream_least=upstream_forecast(state.link, upstream, payload, 1 if told is None else told, carried),
    )


def expected_tokens(request: Request, observation: Observation) -> int:
    """The likely length of an answer: the edge's own once it is there, else the caller's idea, else the limit."""
    told = told_tokens(request, observation)
    return token_count(request.max_tokens) if told is None else told


def told_tokens(request: Request, observation: Observation) -> int | None:
    """The likely length where there is an idea of it: the edge's whole answer, or what the caller expects."""
    limit = token_count(request.max_tokens)
    if observation.moment is Moment.AFTER and observation.tokens > 0 and not observation.edge_failed:
        return min(token_count(observation.tokens), limit)
    if request.expected_tokens is None:
        return None
    return min(max(token_count(request.expected_tokens), token_count(observation.tokens)), limit)


def effective_threshold(request: Request, observation: Observation, policy: Policy) -> float:
    """The confidence under which this request wants to escalate: the most careful of all that have a say.

    Calibration and the operator's directive set the base. A request worth v times the usual tolerates
    a smaller share of the base's risk, 1 / (1 + value_weight·(v - 1)): value raises and never lowers.
    `max_risk` is a promise to the caller: the threshold is at least 1 - max_risk.
    """
    calibrated = policy.threshold_prefix if observation.moment is Moment.DURING else policy.threshold_end
    base = _careful(calibrated)
    if policy.directive_threshold is not None:
        base = max(base, _careful(policy.directive_threshold))
    extra = policy.value_weight * (min(request.value, _FOREVER_S) - 1) if request.value > 1 else 0.0
    raised = 1 - (1 - base) / (1 + extra) if extra > 0 else base
    if request.max_risk is not None:
        raised = max(raised, _careful(1 - request.max_risk))
    return max(raised, base)


def _share(figure: float | None) -> float | None:
    """A probability, or None for anything that is not one."""
    return None if figure is None or not 0 <= figure <= 1 else float(figure)


def _careful(threshold: float) -> float:
    """A threshold within [0, 1]; one that is not a number becomes the most careful."""
    return max(threshold, 0.0) if threshold < 1 else 1.0


def _deadline(seconds: float) -> float:
    """Seconds left, within what arithmetic survives; not a number means none."""
    return max(min(seconds, _FOREVER_S), -_FOREVER_S) if -math.inf <= seconds <= math.inf else 0.0
