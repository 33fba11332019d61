"""The cloud's settings: gateway, engine host and admin, one frozen section each.

Units stand in the names. Every bound that protects a process (queues, tables, waits) is here, with a
default that fits a small machine.
"""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import NoDecode

from runtime.config import Section

MIN_TOKEN_CHARACTERS = 16
LogLevel = Literal["debug", "info", "warning", "error"]


class WeightPrecision(StrEnum):
    """How an engine holds its weights."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"
    NF4 = "nf4"


class GatewayConfig(Section):
    """[gateway]: the stateless door in front of the engine hosts."""

    section: ClassVar[str] = "gateway"

    node: str = "gateway"
    address: str = "127.0.0.1:50061"
    http_address: str = "127.0.0.1:8081"
    engines: Annotated[tuple[str, ...], NoDecode] = ()  # host:port of each engine host
    default_model: str = ""  # for requests that name none, and for escalations; empty: the only one, if there is one
    store_url: str = ""  # sqlite:///PATH, redis://HOST:PORT/N or empty for none
    max_concurrent: int = Field(default=64, ge=1)
    max_queue: int = Field(default=256, ge=0)
    default_deadline_s: float = Field(default=30.0, gt=0)
    repository_dir: Path | None = None  # a signed repository, served to nodes over HTTP as /repository/
    probe_interval_s: float = Field(default=0.5, gt=0)
    probe_timeout_s: float = Field(default=2.0, gt=0)
    stale_after_s: float = Field(default=5.0, gt=0)  # a host not heard of for so long takes no requests
    idempotency_ttl_s: float = Field(default=300.0, gt=0)
    idempotency_entries: int = Field(default=1024, ge=1)
    log_level: LogLevel = "info"

    @field_validator("engines", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """The environment and flags give one string: host:port,host:port, or a JSON list."""
        if isinstance(value, str):
            if value.lstrip().startswith("["):
                return json.loads(value)
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value


class EngineHostConfig(Section):
    """[engine]: one model on one tensor-parallel group of rank processes."""

    section: ClassVar[str] = "engine"

    node: str = "engine"
    address: str = "127.0.0.1:50071"
    model_dir: Path  # a Hugging Face folder: config.json, safetensors, tokenizer
    name: str = ""  # the served name; empty: the folder's
    release: str = ""  # the release id to report; empty: name@<weight digest>
    tensor_parallel_size: int = Field(default=1, ge=1, le=64)
    precision: WeightPrecision = WeightPrecision.BFLOAT16
    threads_per_rank: int = Field(default=1, ge=1)
    max_batch: int = Field(default=8, ge=1)  # requests decoded together
    max_queue: int = Field(default=64, ge=0)  # requests waiting for a place in the batch
    context_length: int = Field(default=2048, ge=16)  # tokens of prompt and answer together
    max_output_tokens: int = Field(default=512, ge=1)  # most tokens of one answer, and the default
    default_deadline_s: float = Field(default=30.0, gt=0)
    run_dir: Path | None = None  # sockets and beats; empty: a temporary directory
    heartbeat_s: float = Field(default=0.5, gt=0)
    heartbeat_timeout_s: float = Field(default=10.0, gt=0)  # a rank silent for so long is taken for hung
    start_timeout_s: float = Field(default=300.0, gt=0)
    drain_timeout_s: float = Field(default=10.0, ge=0)  # how long running requests may finish on a stop
    log_level: LogLevel = "info"

    @property
    def served_name(self) -> str:
        return self.name or self.model_dir.resolve().name


class AdminConfig(Section):
    """[admin]: releases and which of them is active; refuses to start without a token."""

    section: ClassVar[str] = "admin"

    address: str = "127.0.0.1:8090"
    token: SecretStr  # whoever holds it may change what every edge serves
    store_url: str = "sqlite:///weir.db"
    releases_dir: Path = Path("releases")  # release folders that may be registered, by name
    log_level: LogLevel = "info"

    @field_validator("token")
    @classmethod
    def _strong(cls, value: SecretStr) -> SecretStr:
        token = value.get_secret_value()
        if len(token) < MIN_TOKEN_CHARACTERS or not token.isascii() or any(character.isspace() for character in token):
            raise ValueError(
                f"must be at least {MIN_TOKEN_CHARACTERS} ASCII characters without spaces, "
                "for example from: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
        return value

    @field_validator("address")
    @classmethod
    def _address(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65_535:
            raise ValueError("must be host:port (port 0 picks a free one)")
        return value
