"""What one of a node's several models may have of its own, `[[edge.models]]`, and what each of these settings may be.

The bounds are the node's as well: see edge.config.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Precision = Literal["auto", "4", "8"]
Threads = Annotated[int, Field(ge=1, le=1024)]
Slots = Annotated[int, Field(ge=1, le=64)]
ContextLength = Annotated[int, Field(ge=16, le=1 << 20)]
Queue = Annotated[int, Field(ge=0, le=65_536)]
OutputTokens = Annotated[int, Field(ge=1, le=1 << 20)]
BatchRows = Annotated[int, Field(ge=1, le=1024)]
BatchTokens = Annotated[int, Field(ge=16, le=1 << 20)]
LingerMs = Annotated[float, Field(ge=0, le=1000)]
KvTokens = Annotated[int, Field(ge=16)]
CacheBytes = Annotated[int, Field(ge=0)]
BudgetBytes = Annotated[int, Field(ge=1 << 20)]
Share = Annotated[float, Field(ge=0, le=1)]


class ModelConfig(BaseModel):
    """One of several models: `[[edge.models]]`. What is None is as the node has it; see EdgeConfig for the rest.

    `name` is the served name, and whose releases are served where `releases_dir` holds those of several models.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    name: str = Field(min_length=1, max_length=256)
    releases_dir: Path | None = None
    release_pin: str | None = None
    precision: Precision | None = None
    cpus: str | None = None
    threads: Threads | None = None
    spin: bool | None = None
    slots: Slots | None = None
    context_length: ContextLength | None = None
    max_queue: Queue | None = None
    max_output_tokens: OutputTokens | None = None
    batch_rows: BatchRows | None = None
    batch_tokens: BatchTokens | None = None
    linger_ms: LingerMs | None = None
    kv_tokens: KvTokens | None = None
    prefix_cache_bytes: CacheBytes | None = None
    prefix_cache_answers: bool | None = None
    memory_budget_bytes: BudgetBytes | None = None
    threshold: Share | None = None
    upstream_model: str | None = None
