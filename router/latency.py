"""How long things take: running estimates and forecasts made of them.

An estimate is an exponentially weighted mean per stage (first token, each further token), kept as
an immutable value. A forecast adds up what is known; it says whether anything was unknown, so that
nobody mistakes a partial sum for a whole one.

Must not know: clocks. Durations are measured elsewhere and passed in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from router.decision import EdgeView, LinkView, UpstreamView

MAX_TOKENS = 1_000_000
_MAX_FIGURE = 1e12
_LEAST_RATE = 1e-3  # bytes a second: slower than that says no more, and what it divides must stay a number
RTT_DEVIATIONS = 4  # as RFC 6298 adds to the mean for a timeout


def known(figure: float | None) -> float | None:
    """The figure if it is a finite one of 0 or more, else None: a broken measurement is unknown."""
    if figure is None or not 0 <= figure < _MAX_FIGURE:
        return None
    return float(figure)


def token_count(tokens: int) -> int:
    """`tokens` held to a range that arithmetic survives."""
    return min(max(tokens, 0), MAX_TOKENS)


@dataclass(frozen=True, slots=True)
class LatencyEstimate:
    """Seconds to the first token and per further token; None until measured.

    A pace that was measured over a few tokens is mostly noise: under `whole_tokens` further ones, an answer's counts
    by their share of them.
    """

    first_token_s: float | None = None
    per_token_s: float | None = None
    weight: float = 0.3  # of the newest sample
    whole_tokens: int = 10

    def after(self, first_token_s: float, total_s: float, tokens: int) -> LatencyEstimate:
        """This estimate after one more answer of `tokens` tokens. Impossible samples change nothing."""
        first, total = known(first_token_s), known(total_s)
        if first is None or tokens < 1:
            return self
        estimate = replace(self, first_token_s=self._mean(self.first_token_s, first))
        if total is None or total < first or tokens < 2:
            return estimate
        further = token_count(tokens) - 1
        share = min(further / self.whole_tokens, 1.0)
        return replace(estimate, per_token_s=self._mean(self.per_token_s, (total - first) / further, share))

    def _mean(self, old: float | None, sample: float, share: float = 1.0) -> float:
        weight = self.weight * share
        return sample if old is None else (1 - weight) * old + weight * sample


@dataclass(frozen=True, slots=True)
class Forecast:
    """The sum of the stages that are known. `complete` when none was missing."""

    seconds: float
    complete: bool

    @classmethod
    def of(cls, *stages: float | None) -> Forecast:
        return cls(sum(stage for stage in stages if stage is not None), None not in stages)


def edge_forecast(edge: EdgeView, tokens: int) -> Forecast:
    """Seconds until the edge has written `tokens` tokens, its queue included."""
    return Forecast.of(known(edge.queue_s), known(edge.first_token_s), _times(edge.per_token_s, tokens))


def upstream_forecast(
    link: LinkView,
    upstream: UpstreamView,
    payload_bytes: float,
    tokens: int,
    answer_bytes_per_token: float,
    *,
    careful: bool = True,
) -> Forecast:
    """Seconds until an escalation is answered: link, payload, the upstream's work, the answer's way back.

    `careful` allows for the RTT's variation. The answer streams, so that a token takes the longer of
    writing and carrying it.
    """
    rate = known(link.bytes_per_s) or None  # a rate of 0 is a broken measurement, not a dead link
    rate = None if rate is None else max(rate, _LEAST_RATE)
    rtt = known(link.rtt_s)
    if rtt is not None and careful:
        rtt += RTT_DEVIATIONS * (known(link.rtt_var_s) or 0.0)
    send = None if rate is None else (known(payload_bytes) or 0.0) / rate
    per_token = known(upstream.per_token_s)
    if rate is not None:
        carry = (known(answer_bytes_per_token) or 0.0) / rate
        per_token = None if per_token is None else max(per_token, carry)
    return Forecast.of(rtt, send, known(upstream.first_token_s), _times(per_token, tokens))


def _times(per_token_s: float | None, tokens: int) -> float | None:
    per_token = known(per_token_s)
    return None if per_token is None else per_token * max(token_count(tokens) - 1, 0)
