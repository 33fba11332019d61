"""What is known of the network between this node and its upstream, as an immutable value.

Learned from traffic that flows anyway: round trips and their variation as RFC 6298 keeps them,
throughput from transfers that are long enough to tell, failures in a row. A node's regular question
to its upstream is the probe of an idle link; it is padded when the throughput is old or in doubt.

Invariants: time alone only takes knowledge away. An old figure becomes unknown, and so does an old
"down"; nothing becomes fine or dead by waiting. A link that went down has its figures forgotten, for
they were those of another link.

Must not know: clocks, sockets, what a request is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from router.decision import LinkView
from router.latency import RTT_DEVIATIONS, known

_RTT_WEIGHT = 1 / 8  # RFC 6298: alpha
_VARIATION_WEIGHT = 1 / 4  # RFC 6298: beta
_SHORTEST_S = 1e-6
_MUCH = 2.0  # throughputs further apart than by this factor are unlike each other


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """How figures are averaged, when they are too old, and how a probe is padded."""

    throughput_weight: float = 0.5  # of the newest transfer
    min_transfer_bytes: int = 2048  # a shorter one tells latency, not throughput
    down_after: int = 3  # failures in a row
    stale_after_s: float = 30.0
    down_stale_after_s: float = 15.0
    throughput_interval_s: float = 8.0  # a probe is padded when the throughput is older than this
    max_probe_bytes: int = 16 * 1024
    probe_transfer_s: float = 0.5  # a padded probe is sized to take about this long

    def __post_init__(self) -> None:
        if not 0 < self.throughput_weight <= 1:
            raise ValueError(f"network throughput_weight is {self.throughput_weight}; it must be within (0, 1]")
        for name in ("min_transfer_bytes", "down_after", "max_probe_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"network {name} is {getattr(self, name)}; it must be at least 1")
        for name in (
            "stale_after_s",
            "down_stale_after_s",
            "throughput_interval_s",
            "probe_transfer_s",
        ):
            if not getattr(self, name) > 0:
                raise ValueError(f"network {name} is {getattr(self, name)}; it must be above 0")


@dataclass(frozen=True, slots=True)
class NetworkEstimate:
    """Figures with the times they were learned at; None where nothing was learned yet."""

    settings: NetworkSettings = NetworkSettings()
    rtt_s: float | None = None
    rtt_var_s: float | None = None
    rtt_at: float = 0.0
    last_rtt_s: float | None = None  # the newest sample
    bytes_per_s: float | None = None
    last_bytes_per_s: float | None = None  # the newest sample
    throughput_at: float = 0.0
    failures: int = 0  # in a row
    failed_at: float = 0.0
    doubted: bool = False  # a sample was so unlike the others that the throughput must be looked at again

    def round_trip(self, seconds: float, now: float) -> NetworkEstimate:
        """After a round trip that carried next to nothing and waited for no work.

        Means as in RFC 6298, except that two samples in a row that are unlike the mean and like each
        other replace it, as they do for the throughput: the link is another one.
        """
        sample = known(seconds)
        if sample is None:
            return self
        if self.rtt_s is None or self.rtt_var_s is None or not self._fresh(self.rtt_at, now):
            rtt, variation, doubted = sample, sample / 2, self.doubted
        else:
            doubted = self.doubted or abs(sample - self.rtt_s) > max(RTT_DEVIATIONS * self.rtt_var_s, self.rtt_s)
            variation = (1 - _VARIATION_WEIGHT) * self.rtt_var_s + _VARIATION_WEIGHT * abs(self.rtt_s - sample)
            rtt = (1 - _RTT_WEIGHT) * self.rtt_s + _RTT_WEIGHT * sample
            if self.last_rtt_s is not None and not _alike(sample, self.rtt_s) and _alike(sample, self.last_rtt_s):
                rtt, variation = sample, sample / 2
        measured = replace(self, rtt_s=rtt, rtt_var_s=variation, rtt_at=now, last_rtt_s=sample)
        return replace(measured, failures=0, doubted=doubted)

    def transfer(self, moved_bytes: int, seconds: float, now: float) -> NetworkEstimate:
        """After `moved_bytes` took `seconds` on the wire, round trip and waiting not counted.

        The mean is geometric, since links differ by orders of magnitude. Two samples in a row that
        are unlike it and like each other replace it: the link is another one.
        """
        sample, size = known(seconds), known(moved_bytes)
        if sample is None or size is None or size < self.settings.min_transfer_bytes:
            return self.reached()
        newest = mean = size / max(sample, _SHORTEST_S)
        doubted = False
        if self.bytes_per_s is not None and self._fresh(self.throughput_at, now):
            doubted = not _alike(newest, self.bytes_per_s)
            before = self.last_bytes_per_s
            if not (doubted and before is not None and _alike(newest, before)):
                weight = self.settings.throughput_weight
                mean = math.exp((1 - weight) * math.log(self.bytes_per_s) + weight * math.log(newest))
        measured = replace(self, bytes_per_s=mean, last_bytes_per_s=newest, throughput_at=now)
        return replace(measured, failures=0, doubted=doubted)

    def probe(self, padding_bytes: int, seconds: float, now: float) -> NetworkEstimate:
        """After a probe with that much padding was answered in `seconds`, the round trip included.

        A padded probe tells throughput: the padding took what it took longer than the last empty one.
        Less than an eighth of the whole is noise, and counts as an eighth.
        """
        if padding_bytes < self.settings.min_transfer_bytes:
            return self.round_trip(seconds, now)
        # The last round trip rather than their mean, which lags behind when the delay has just changed.
        return self.transfer(padding_bytes, max(seconds - (self.last_rtt_s or 0.0), seconds / 8), now)

    def reached(self) -> NetworkEstimate:
        """After the upstream was heard, with nothing measured."""
        return replace(self, failures=0)

    def failed(self, now: float) -> NetworkEstimate:
        """After the upstream could not be reached (a refusal by an upstream that is there is no failure)."""
        failures = self.failures + 1 if self._recent_failure(now) else 1
        estimate = replace(self, failures=failures, failed_at=now)
        if failures < self.settings.down_after:
            return estimate
        return replace(estimate, rtt_s=None, rtt_var_s=None, bytes_per_s=None)

    def probe_bytes(self, now: float) -> int:
        """How much padding the next probe should ask for: 0 while the throughput is young or the RTT unknown.

        Sized by the last known rate, so that a probe does not clog a narrow link.
        """
        view = self.view(now)
        young = now - self.throughput_at < self.settings.throughput_interval_s and not self.doubted
        if view.rtt_s is None or (view.bytes_per_s is not None and young):
            return 0
        wanted = self.settings.max_probe_bytes
        if self.bytes_per_s is not None:
            wanted = int(min(wanted, self.bytes_per_s * self.settings.probe_transfer_s))
        return max(wanted, self.settings.min_transfer_bytes)

    def view(self, now: float) -> LinkView:
        """The estimate as it stands at `now`, without what is too old to be believed."""
        rtt_fresh = self._fresh(self.rtt_at, now)
        return LinkView(
            rtt_s=self.rtt_s if rtt_fresh else None,
            rtt_var_s=self.rtt_var_s if rtt_fresh else None,
            bytes_per_s=self.bytes_per_s if self._fresh(self.throughput_at, now) else None,
            down=self.failures >= self.settings.down_after and self._recent_failure(now),
        )

    def _fresh(self, at: float, now: float) -> bool:
        return now - at <= self.settings.stale_after_s

    def _recent_failure(self, now: float) -> bool:
        return self.failures > 0 and now - self.failed_at <= self.settings.down_stale_after_s


def _alike(one: float, other: float) -> bool:
    return 1 / _MUCH <= max(one, _SHORTEST_S) / max(other, _SHORTEST_S) <= _MUCH
