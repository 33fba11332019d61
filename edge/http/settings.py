"""Bounds and defaults of everything that is served over HTTP."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """`streaming_rule` is the commit rule of clients that stream and name none."""

    default_deadline_s: float = 30.0
    max_deadline_s: float = 600.0
    max_body_bytes: int = 4 << 20
    streaming_rule: str = "prefix:8"
