"""What one engine process is told at its start: a JSON object, its only argument."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class ProcessConfig(BaseModel):
    """One engine process, whatever its model's task. `model` is the served name; empty means the release's own.

    `memory_budget_bytes` is what the whole process may take; None: what the system has free.
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
    max_queue: Annotated[int, Field(ge=0, le=65536)] = 64
    default_deadline_s: Annotated[float, Field(gt=0, le=86_400)] = 30.0
    memory_budget_bytes: Annotated[int, Field(ge=1 << 20)] | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class EngineConfig(ProcessConfig):
    """That of a decoder.

    Without a `memory_budget_bytes` it promises of what is free no more than one part in `memory_sharers`. `kv_tokens`
    is how many tokens of prompts and answers may be in memory at once; None: whatever the slots hold.
    `prefix_cache_bytes` is what kept prefixes may take, 0 nothing; None: a quarter gigabyte. Memory bounds both
    further.
    """

    slots: Annotated[int, Field(ge=1, le=256)] = 4
    max_output_tokens: Annotated[int, Field(ge=1, le=1 << 20)] = 512
    prefill_chunk: Annotated[int, Field(ge=4, le=4096)] = 128
    kv_tokens: Annotated[int, Field(ge=16)] | None = None
    prefix_cache_bytes: Annotated[int, Field(ge=0)] | None = None
    prefix_cache_answers: bool = False
    memory_sharers: Annotated[int, Field(ge=1)] = 1
