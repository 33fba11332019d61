"""What the parts of a front go by, from its configuration."""

from __future__ import annotations

from edge.config import EdgeConfig
from edge.http.settings import HttpSettings
from edge.judge import CascadeSettings
from edge.precision import PrecisionLoopSettings
from edge.upstream import UpstreamSettings
from router.breaker import BreakerSettings
from router.decision import Policy
from router.network import NetworkSettings
from router.precision import PrecisionSettings
from wire.channel import ClientTls
from wire.validate import RequestLimits


def tls(config: EdgeConfig) -> ClientTls | None:
    """Towards the upstream; None: in clear."""
    if config.upstream_ca_file is None and config.upstream_certificate_file is None:
        return None
    return ClientTls(config.upstream_ca_file, config.upstream_certificate_file, config.upstream_key_file)


def upstream_settings(config: EdgeConfig) -> UpstreamSettings:
    return UpstreamSettings(
        target=config.upstream,
        model=config.upstream_model,
        served=config.model,
        network=NetworkSettings(max_probe_bytes=max(config.probe_bytes, 1)),
        breaker=BreakerSettings(cooldown_s=1.0, max_cooldown_s=8.0),
        escalations_per_minute=config.escalations_per_minute,
    )


def cascade_settings(config: EdgeConfig) -> CascadeSettings:
    return CascadeSettings(
        node=config.node,
        model=config.model,
        limits=RequestLimits(max_prompt_bytes=config.max_prompt_bytes, max_hops=config.max_hops),
        policy=Policy(
            directive_threshold=config.threshold,
            value_weight=config.value_weight,
            prefer_faster_upstream=config.prefer_faster_upstream,
        ),
        commit_rule=config.commit_rule,
        max_output_tokens=config.max_output_tokens,
        max_requests=config.max_requests,
        private_classes=frozenset(config.private_classes),
    )


def precision_settings(config: EdgeConfig) -> PrecisionLoopSettings:
    plan = PrecisionSettings(
        pinned=None if config.precision == "auto" else int(config.precision),
        error_cost_s=config.error_cost_ms / 1e3,
        margin=config.precision_hysteresis,
        dwell_s=config.precision_dwell_s,
    )
    return PrecisionLoopSettings(config.precision_interval_s, plan)


def http_settings(config: EdgeConfig) -> HttpSettings:
    return HttpSettings(
        config.default_deadline_s,
        config.max_deadline_s,
        config.max_body_bytes,
        f"prefix:{config.commit_prefix_tokens}",
    )
