"""What a tier says of itself: which models it serves, what it holds its callers to.

The fields are those of protos/weir/v1/inference.proto; `wire.convert_describe` maps one to the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wire.messages import Tier


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One model as a tier serves it now."""

    name: str
    release: str = ""
    tasks: tuple[str, ...] = ("generate",)
    capabilities: tuple[str, ...] = ()
    tokenizer_digest: str = ""
    precision: int = 0
    weight_format: str = ""
    weight_digest: str = ""
    context_length: int = 0
    max_output_tokens: int = 0
    precisions_available: tuple[int, ...] = ()
    calibration_id: str = ""
    labels: tuple[str, ...] = ()
    multi_label: bool = False

    def reads_as(self, other: ModelInfo | None) -> bool:
        """Whether token ids are known to mean the same to both: each told its tokenizer, and it is one."""
        return other is not None and bool(self.tokenizer_digest) and self.tokenizer_digest == other.tokenizer_digest


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds a tier holds its callers to."""

    max_prompt_bytes: int = 0
    max_concurrent: int = 0
    max_queue: int = 0
    max_hops: int = 0


@dataclass(frozen=True, slots=True)
class Description:
    """What a tier serves. `active_releases` maps a model to the release its edges should serve."""

    node: str
    tier: Tier
    version: str = ""
    models: tuple[ModelInfo, ...] = ()
    limits: Limits = Limits()
    active_releases: Mapping[str, str] = field(default_factory=dict)
    ready: bool = True
    not_ready_reason: str = ""
    padding: bytes = b""
