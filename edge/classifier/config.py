"""What one engine process of a classifier is told at its start: a JSON object, its only argument."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class ClassifierConfig(BaseModel):
    """One engine process. `model` is the served name; empty means the release's own.

    A batch holds at most `batch_rows` texts and `batch_tokens` tokens, padding included, and `max_padding` of them
    may be padding. A text that comes while nothing runs is run at once; `linger_ms` above 0 has it wait that long
    for company. `memory_budget_bytes` is what the whole process may take; None: what the system has free.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    socket: Path
    release_dir: Path
    precision: Literal[4, 8] = 8
    model: str = ""
    node: str = "edge"
    cpus: str = ""  # processors to keep to; empty: all that are allowed
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    spin: bool = False
    context_length: Annotated[int, Field(ge=16, le=1 << 20)] = 2048
    batch_rows: Annotated[int, Field(ge=1, le=1024)] = 32
    batch_tokens: Annotated[int, Field(ge=16, le=1 << 20)] = 256
    max_padding: Annotated[float, Field(ge=0, le=1)] = 0.2
    linger_ms: Annotated[float, Field(ge=0, le=1000)] = 0.0
    max_queue: Annotated[int, Field(ge=0, le=65536)] = 64
    default_deadline_s: Annotated[float, Field(gt=0, le=86_400)] = 30.0
    memory_budget_bytes: Annotated[int, Field(ge=1 << 20)] | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
