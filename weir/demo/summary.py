"""The demo's figures: one JSON object, and the same in words."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from rich.table import Table

from bench.link import Rates
from runtime.version import weir_version
from weir.demo.record import Record, of_act, prove_precision

CASCADE, CLOUD_ONLY, NARROW, CUT, BACK = "cascade", "cloud_only", "narrow", "cut", "back"


@dataclass(slots=True)
class Outcome:
    """Everything that happened."""

    records: list[Record] = field(default_factory=list)
    switches: list[Mapping[str, Any]] = field(default_factory=list)
    precision_plan: str = ""  # the router's words while the link was narrow
    link_wide: Rates | None = None
    link_narrow: Rates | None = None
    calibration: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    resumed: bool = False
    recovery_s: float | None = None
    ranks_killed: Sequence[int] = ()
    picture: str = ""
    run_dir: str = ""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """The object that `weir demo --json` prints."""
        cascade, alone = of_act(self.records, CASCADE), of_act(self.records, CLOUD_ONLY)
        return {
            "requests": len(self.records),
            "failed": sum(record.failed for record in self.records),
            "edge_share": edge_share(cascade),
            "mean_ms": {CASCADE: _mean(cascade), CLOUD_ONLY: _mean(alone)},
            "p50_ms": {CASCADE: _median(cascade), CLOUD_ONLY: _median(alone)},
            "max_ms": {CASCADE: _max(cascade), CLOUD_ONLY: _max(alone)},
            "cloud_tokens": {CASCADE: cloud_tokens(cascade), CLOUD_ONLY: cloud_tokens(alone)},
            "precision_switches": len(self.switches),
            "switches": list(self.switches),
            "precision_plan": self.precision_plan,
            "degraded_answers": sum(record.degraded for record in self.records),
            "resumed": self.resumed,
            "recovery_s": self.recovery_s,
            "ranks_killed": list(self.ranks_killed),
            "same_as_cloud": agreement(cascade, alone),
            "link": {
                "bytes_per_s_wide": _rate(self.link_wide),
                "bytes_per_s_narrow": _rate(self.link_narrow),
            },
            "calibration": dict(self.calibration),
            "weight_digests": {str(bits): digests for bits, digests in prove_precision(self.records).items()},
            "models": dict(self.models),
            "per_request": [record.as_json() for record in self.records],
            "picture": self.picture,
            "run_dir": self.run_dir,
            "seconds": round(self.seconds, 1),
            "versions": versions(),
            "machine": {"system": platform.platform(), "cpus": _cpus(), "python": platform.python_version()},
        }


def edge_share(records: Sequence[Record]) -> float | None:
    """Share of the answered requests that the edge answered."""
    answered = [record for record in records if not record.failed]
    if not answered:
        return None
    return round(sum(record.tier == "edge" for record in answered) / len(answered), 4)


def cloud_tokens(records: Sequence[Record]) -> int:
    """Prompt and answer tokens that went through the cloud's model."""
    return sum(record.tokens for record in records if record.tier == "cloud")


def agreement(cascade: Sequence[Record], alone: Sequence[Record]) -> dict[str, int]:
    """Of the answers the edge gave in act one: how many were, but for case and stops, the cloud's own words."""
    words = {record.question: _plain(record.answer) for record in alone if not record.failed}
    given = [record for record in cascade if record.tier == "edge" and record.question in words]
    return {"edge_answers": len(given), "same": sum(_plain(r.answer) == words[r.question] for r in given)}


def _plain(text: str) -> str:
    return " ".join(text.lower().replace(".", " ").replace("!", " ").split())


def _times(records: Sequence[Record]) -> list[float]:
    return [record.ms for record in records if not record.failed]


def _mean(records: Sequence[Record]) -> float | None:
    return round(statistics.fmean(times), 1) if (times := _times(records)) else None


def _median(records: Sequence[Record]) -> float | None:
    return round(statistics.median(times), 1) if (times := _times(records)) else None


def _max(records: Sequence[Record]) -> float | None:
    return round(max(times), 1) if (times := _times(records)) else None


def _rate(rates: Rates | None) -> float | None:
    return None if rates is None else round(rates.down_bytes_per_s)


def versions() -> dict[str, str]:
    """Of what the figures depend on."""
    names = ("onnxruntime", "torch", "transformers", "grpcio")
    return {"weir": weir_version(), **{name: metadata.version(name) for name in names}}


def _cpus() -> int:
    from edge.config import available_cpus

    return available_cpus()


def table(figures: Mapping[str, Any]) -> Table:
    """The summary for people."""
    result = Table(show_header=True, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, justify in (("", "left"), ("cascade", "right"), ("cloud alone", "right")):
        result.add_column(name, justify=justify)  # type: ignore[arg-type]
    for label, key in (("mean ms", "mean_ms"), ("median ms", "p50_ms"), ("longest ms", "max_ms")):
        pair = figures[key]
        result.add_row(label, _number(pair[CASCADE]), _number(pair[CLOUD_ONLY]))
    tokens = figures["cloud_tokens"]
    result.add_row("cloud tokens", str(tokens[CASCADE]), str(tokens[CLOUD_ONLY]))
    share = figures["edge_share"]
    result.add_row("answered on the edge", "-" if share is None else f"{share:.0%}", "0%")
    return result


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def sentences(figures: Mapping[str, Any]) -> list[str]:
    """What the table does not hold, a line each."""
    tokens = figures["cloud_tokens"]
    saved = 1 - tokens[CASCADE] / tokens[CLOUD_ONLY] if tokens[CLOUD_ONLY] else 0.0
    link, same = figures["link"], figures["same_as_cloud"]
    lines = [
        f"{figures['requests']} requests, {figures['failed']} failed; {figures['degraded_answers']} answers were "
        "degraded and said so",
        f"{saved:.0%} of the cloud's tokens saved; of {same['edge_answers']} answers given on the edge "
        f"{same['same']} were the cloud's own words",
        f"precision switches: {figures['precision_switches']}; escalation "
        f"{'resumed' if figures['resumed'] else 'did NOT resume'} after the ranks were killed",
    ]
    if link["bytes_per_s_wide"] and link["bytes_per_s_narrow"]:
        lines.append(
            f"link, measured at the socket: {link['bytes_per_s_wide'] / 1e3:.0f} kB/s wide, "
            f"{link['bytes_per_s_narrow'] / 1e3:.1f} kB/s narrow"
        )
    return lines
