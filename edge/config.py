"""The edge node's settings: the `[edge]` table, `WEIR_EDGE__<KEY>`, flags.

One frozen object for the launcher, the front and the engine process. The launcher settles what has
no fixed default (`run_dir`, `models`) and hands the whole to its children as JSON, their only argument, which
they read with `EdgeConfig.from_json`; so the environment is read once. Of a node with several models
`edge.models` makes one such object per model, in which `model` names it and `models` is empty.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, SecretStr, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from edge.model_config import (
    BatchRows,
    BatchTokens,
    BudgetBytes,
    CacheBytes,
    ContextLength,
    KvTokens,
    LingerMs,
    ModelConfig,
    OutputTokens,
    Precision,
    Queue,
    Share,
    Slots,
    Threads,
)
from edge.places import Address, Repository, Upstream, urls
from runtime import processors
from runtime.config import Section

Seconds = Annotated[float, Field(gt=0, le=86_400)]
API_KEY_VARIABLE = "WEIR_EDGE__UPSTREAM_API_KEY"
SECRETS = frozenset((API_KEY_VARIABLE,))  # variables that no child has any use for but the one they are given to
# What can be asked of an OpenAI-compatible endpoint (edge.openai_upstream), in the words of wire.capabilities.
REMOTE_CAPABILITIES = ("stream", "sample", "min_p", "penalties", "json_schema", "tools", "tool_turns")


def available_cpus() -> int:
    """Threads to compute with where nothing else is said: physical cores that may be used, within the quota."""
    return processors.threads()


def _threads(settled: Mapping[str, object]) -> int:
    """As many as `cpus` has cores."""
    cpus = settled.get("cpus")
    try:
        return processors.threads(cpus if isinstance(cpus, str) else "")
    except ValueError:  # which is told of `cpus`
        return 1


class EdgeConfig(Section):
    """What an edge node serves, where, and how it decides."""

    section: ClassVar[str] = "edge"
    model_config = SettingsConfigDict(env_prefix="WEIR_EDGE__")

    node: str = Field("edge", min_length=1, max_length=256)
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    # What is served: releases that lie in `releases_dir` (a release folder, or a folder that holds several), or
    # those that the updater keeps in `store_dir`; with both, the former serve until the store has some.
    releases_dir: Path | None = None
    model: str = ""  # serve this one alone, under this name; empty: every model that is found, under its own
    models: tuple[ModelConfig, ...] = ()  # these, each with settings of its own; docs/models.md
    default_model: str = ""  # of requests that name none; empty: the only one that can serve them
    precision: Precision = "auto"
    run_dir: Path | None = None  # sockets; None: a fresh temporary folder
    cpus: str = ""  # processors the engine keeps to, as 0-3,8; empty: all that are allowed
    threads: Threads = Field(default_factory=_threads)
    spin: bool = False  # idle threads wait busily: a little faster, on cores that nobody else needs
    slots: Slots = 4
    context_length: ContextLength = 2048
    max_queue: Queue = 64
    max_output_tokens: OutputTokens = 512
    batch_rows: BatchRows = 32  # of a classifier: texts, and tokens with padding, run together
    batch_tokens: BatchTokens = 256
    linger_ms: LingerMs = 0.0  # of a classifier: how long a lone text waits for company
    kv_tokens: KvTokens | None = None  # prompts and answers in memory at once; None: what the slots hold
    prefix_cache_bytes: CacheBytes | None = None  # KV of prompts kept for the next; 0: none; None: 256 MiB
    prefix_cache_answers: bool = False  # and of answers: a conversation's next turn begins sooner, not bit for bit

    # Where it listens, and what one request may cost.
    http_address: Address = "127.0.0.1:8080"
    grpc_address: Address = "127.0.0.1:50051"
    default_deadline_s: Seconds = 30.0
    max_deadline_s: Seconds = 600.0
    max_prompt_bytes: int = Field(1 << 20, ge=1)
    max_body_bytes: int = Field(4 << 20, ge=1024)
    max_requests: int = Field(256, ge=1, le=65_536)  # of each model in this node at once, wherever they are answered
    max_hops: int = Field(4, ge=0, le=16)

    # The next tier up. Empty: none, the edge answers everything. host:port: a gateway or a node; http(s)://…/v1: an
    # OpenAI-compatible endpoint, which the fields from upstream_api_key on are for. docs/upstreams.md.
    upstream: Upstream = ""
    upstream_model: str = ""  # its name for the model; empty: the same name if it has it, else its default
    upstream_ca_file: Path | None = None
    upstream_certificate_file: Path | None = None
    upstream_key_file: Path | None = None
    upstream_api_key: SecretStr | None = None
    upstream_api_key_file: Path | None = None  # read at start
    upstream_logprobs: bool = False  # it tells the log-probs of tokens
    # What it serves, in the words of /v1/models; empty: all that OpenAI's interface has words for.
    upstream_capabilities: Annotated[tuple[str, ...], NoDecode] = ()
    probe_interval_s: Seconds = 2.0
    probe_bytes: int = Field(16 << 10, ge=0, le=256 << 10)
    private_classes: Annotated[tuple[str, ...], NoDecode] = ()  # request classes that must not leave the node

    # Where releases come from, and what fetching them may cost. docs/updates.md.
    store_dir: Path | None = None  # the updater's; survives restarts
    repository: Repository = ""  # http(s)://..., or the folder of a repository; empty: bundles alone
    trusted_root: Path | None = None  # the first root.json this node believes
    siblings: Annotated[tuple[str, ...], NoDecode] = ()  # http://host:port/repository of nodes nearby, asked first
    share_store: bool = False  # be such a sibling
    release_pin: str = ""  # this release and no other
    bandwidth_share: float = Field(0.5, gt=0, le=1)  # of the link, while something serves
    metered: bool = False  # bytes cost money: fetch only what pays
    bytes_per_day: int | None = Field(None, ge=0)
    keep_free_bytes: int = Field(256 << 20, ge=0)  # on the store's disk
    update_interval_s: Seconds = 60.0
    memory_budget_bytes: BudgetBytes | None = None  # for all models together; None: what is free

    # When an answer is committed and when it is escalated.
    commit_rule: str = "end"
    commit_prefix_tokens: int = Field(8, ge=1, le=4096)  # for clients that stream
    threshold: Share | None = None  # a floor above what the release's calibration says
    value_weight: float = Field(1.0, ge=0, le=1_000)
    prefer_faster_upstream: bool = False
    escalations_per_minute: float | None = Field(None, ge=0)

    # The choice of precision: latency + error_cost_ms · expected error, with hysteresis.
    error_cost_ms: float = Field(4_000.0, ge=0)
    precision_hysteresis: Share = 0.1
    precision_dwell_s: float = Field(5.0, ge=0, le=86_400)
    precision_interval_s: Seconds = 1.0
    rehearse: bool = True  # measure every precision on this box before planning

    # Of one of several models (edge.models): whether releases of another name may be taken for it where they are alone.
    _named_in_store: bool = PrivateAttr(default=False)
    _named_in_folder: bool = PrivateAttr(default=False)
    _memory_sharers: int = PrivateAttr(default=1)

    @field_validator("cpus")
    @classmethod
    def _allowed(cls, value: str) -> str:
        processors.usable(value)
        return value

    @field_validator("private_classes", "siblings", "upstream_capabilities", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """The environment and flags give one string: a,b."""
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("models", mode="before")
    @classmethod
    def _read(cls, value: object) -> object:
        """A flag gives JSON."""
        try:
            return json.loads(value) if isinstance(value, str) else value
        except ValueError as error:
            raise ValueError('must be a JSON list of objects, as \'[{"name": "intents"}]\'') from error

    @field_validator("siblings")
    @classmethod
    def _urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return urls(value)

    @field_validator("commit_rule")
    @classmethod
    def _rule(cls, value: str) -> str:
        head, _, tokens = value.partition(":")
        if value != "end" and not (head == "prefix" and tokens.isdecimal() and 1 <= int(tokens) <= 4096):
            raise ValueError("must be 'end' or 'prefix:<tokens>' with 1 to 4096 tokens")
        return value

    @model_validator(mode="after")
    def _releases(self) -> Self:
        own = bool(self.models) and all(entry.releases_dir is not None for entry in self.models)
        if self.releases_dir is None and self.store_dir is None and not own:
            raise ValueError("releases_dir or store_dir must be given: where releases lie, or where to keep them")
        if self.store_dir is None and (self.repository or self.siblings or self.share_store or self.release_pin):
            raise ValueError("repository, siblings, share_store and release_pin need store_dir")
        if (self.repository or self.siblings) and self.trusted_root is None:
            raise ValueError("repository and siblings need trusted_root, the root.json to believe (`weir keys`)")
        return self

    @model_validator(mode="after")
    def _models(self) -> Self:
        names = [entry.name for entry in self.models]
        if len(set(names)) < len(names):
            raise ValueError("models: a name occurs twice; each model is served under a name of its own")
        if self.model and self.models:
            raise ValueError("model and models exclude each other: put the model into models")
        if self.release_pin and len(self.models) > 1:
            raise ValueError("release_pin is of one model: put it into its [[edge.models]]")
        if self.default_model and self.models and self.default_model not in names:
            raise ValueError(f"default_model {self.default_model!r} is not among models: {', '.join(names)}")
        return self

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if not self.http_address or not self.grpc_address:
            raise ValueError("http_address and grpc_address must be given")
        if (self.upstream_certificate_file is None) != (self.upstream_key_file is None):
            raise ValueError("upstream_certificate_file and upstream_key_file belong together")
        own = ("upstream_api_key", "upstream_api_key_file", "upstream_capabilities", "upstream_logprobs")
        given = [name for name in own if getattr(self, name)]
        if given and not self.upstream_url:
            raise ValueError(f"{given[0]} is for an upstream that is a URL, like https://host/v1")
        if self.upstream_api_key is not None and self.upstream_api_key_file is not None:
            raise ValueError("upstream_api_key and upstream_api_key_file exclude each other")
        unknown = [name for name in self.upstream_capabilities if name not in REMOTE_CAPABILITIES]
        if unknown:
            raise ValueError(f"upstream_capabilities: {unknown[0]!r} is none of {', '.join(REMOTE_CAPABILITIES)}")
        if self.default_deadline_s > self.max_deadline_s:
            raise ValueError("default_deadline_s must not exceed max_deadline_s")
        return self

    @property
    def named_in_store(self) -> bool:
        """Whether only releases called `model` are its own; a node's only model may go by another name."""
        return self._named_in_store

    @property
    def named_in_folder(self) -> bool:
        """Likewise in `releases_dir`."""
        return self._named_in_folder

    @property
    def memory_sharers(self) -> int:
        """Models that promise of what is free, where no budget is set."""
        return self._memory_sharers

    def among_others(self, *, own_folder: bool, models: int) -> Self:
        """This configuration of one model, as that of one of so many."""
        self._named_in_store, self._named_in_folder, self._memory_sharers = True, not own_folder, models
        return self

    @property
    def engine_socket(self) -> Path:
        """Where the engine process listens; `run_dir` must be settled."""
        if self.run_dir is None:
            raise ValueError("run_dir is not settled; the launcher does that")
        return self.run_dir / "engine.sock"

    @property
    def engine_target(self) -> str:
        """The engine as a gRPC target."""
        return f"unix:{self.engine_socket}"

    @property
    def upstream_url(self) -> bool:
        """Whether the upstream is an OpenAI-compatible endpoint."""
        return self.upstream.startswith(("http://", "https://"))

    def to_json(self) -> str:
        """Everything but the key: arguments of a process can be read by everybody on the machine. See `secrets`."""
        return self.model_dump_json(exclude={"upstream_api_key"})

    def secrets(self) -> dict[str, str]:
        """What goes to a child in its environment."""
        return {} if self.upstream_api_key is None else {API_KEY_VARIABLE: self.upstream_api_key.get_secret_value()}

    @classmethod
    def from_json(cls, text: str, environment: Mapping[str, str] | None = None) -> EdgeConfig:
        """Raises pydantic's ValidationError."""
        config = cls.model_validate_json(text)
        key = (environment or {}).get(API_KEY_VARIABLE)
        return config if key is None else config.model_copy(update={"upstream_api_key": SecretStr(key)})
