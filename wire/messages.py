"""What travels between tiers, as frozen dataclasses.

The fields are those of protos/weir/v1/inference.proto; `wire.convert` and `wire.convert_answer` map one to the other.
What a tier says of itself is in wire.description, what an engine says in wire.engine. An absent optional is None,
never a magic number. Enumerations carry the words that users see.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Tier(enum.StrEnum):
    """Where an answer comes from."""

    EDGE = "edge"
    CLOUD = "cloud"


class Reason(enum.StrEnum):
    """Why a request was answered where it was."""

    CONFIDENT = "confident"
    LOW_CONFIDENCE = "low_confidence"
    EARLY_STOP = "early_stop"
    PRE_ROUTED = "pre_routed"
    FASTER_UPSTREAM = "faster_upstream"
    PROMISE = "promise"
    EDGE_ONLY = "edge_only"
    CLOUD_ONLY = "cloud_only"
    PRIVACY = "privacy"
    CAPABILITY = "capability"
    DEADLINE = "deadline"
    BUDGET = "budget"
    BREAKER_OPEN = "breaker_open"
    OFFLINE = "offline"
    UPSTREAM_ERROR = "upstream_error"


class TierConstraint(enum.StrEnum):
    """Which tiers a caller allows."""

    AUTO = "auto"
    EDGE_ONLY = "edge_only"
    CLOUD_ONLY = "cloud_only"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that a model asks for. `arguments` is a JSON object, as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool a model may ask for. `parameters` is the JSON schema of its arguments; empty: any object."""

    name: str
    description: str = ""
    parameters: str = ""
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """One chat turn; `role` is system, user, assistant or tool. `tool_call_id` is the call a tool's turn answers."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. None means the serving model's default; temperature 0 is greedy.

    Penalties and bias change the logits before temperature, as in OpenAI's interface; `min_p` leaves out
    what is less likely than that share of the likeliest token.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    @property
    def greedy(self) -> bool:
        return not self.temperature

    @property
    def reshapes(self) -> bool:
        """Whether penalties or a bias change the logits."""
        return bool(
            self.logit_bias
            or self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty not in (None, 1.0)
        )


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """A constraint on the answer's form: text, json_object, json_schema, or the likeliest of `choices`.

    `name`, `description` and `strict` are what a caller says of its schema, for OpenAI-compatible endpoints, which
    take only some schemas as strict. Weir's own tiers hold an answer to its schema always.
    """

    type: str = "text"
    json_schema: str = ""
    choices: tuple[str, ...] = ()
    name: str = ""
    description: str = ""
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Constraints:
    """What the caller insists on. `commit_rule` is "end", "prefix:<tokens>" or "" for the node's own."""

    tier: TierConstraint = TierConstraint.AUTO
    max_risk: float | None = None
    commit_rule: str = ""


@dataclass(frozen=True, slots=True)
class Context:
    """Who asks, and how much it matters. Never changes an answer's text."""

    session_id: str = ""
    tenant: str = ""
    site: str = ""
    request_class: str = ""
    value: float | None = None
    priority: int = 0
    subject: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    """An edge's own attempt, sent along with an escalation. One natural log-prob per token id."""

    release: str
    precision: int
    tokenizer_digest: str
    calibration_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One request for text: either `messages` or a raw `prompt`."""

    model: str = ""
    messages: tuple[Message, ...] = ()
    prompt: str = ""
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    response_format: ResponseFormat | None = None
    constraints: Constraints = Constraints()
    context: Context = Context()
    draft: Draft | None = None
    idempotency_key: str = ""
    hops: int = 0
    return_logprobs: bool = False
    return_signals: bool = False
    request_id: str = ""
    top_logprobs: int = 0
    tools: tuple[Tool, ...] = ()
    tool_choice: str = ""  # auto (also when empty), none, required, or function:NAME


@dataclass(frozen=True, slots=True)
class Committed:
    """The answer's tier is settled; what follows is never taken back. `release` is empty where nobody said."""

    tier: Tier
    reason: Reason
    request_id: str = ""
    release: str = ""


@dataclass(frozen=True, slots=True)
class Signals:
    """Running aggregates over decoded tokens, from the unmodified distribution. Nats throughout."""

    tokens: int = 0
    sum_logprob: float = 0.0
    min_logprob: float = 0.0
    second_min_logprob: float = 0.0
    first_logprob: float = 0.0
    sum_entropy: float = 0.0
    max_entropy: float = 0.0
    min_margin: float = 0.0
    sum_margin: float = 0.0
    prompt_tokens: int = 0


LEAST_LOGPROB = -9999.0  # what OpenAI's interface says of the impossible; JSON has no infinity


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, its natural log-prob in the unmodified distribution, and its own bytes."""

    token_id: int
    logprob: float
    text: bytes = b""


@dataclass(frozen=True, slots=True)
class Delta:
    """The next piece of an answer. Token ids, bytes and log-probs only when asked for, one of each per token.

    `top_logprobs` lists each token's likeliest alternatives, itself among them where it is one.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    signals: Signals | None = None
    token_bytes: tuple[bytes, ...] = ()
    top_logprobs: tuple[tuple[TokenLogprob, ...], ...] = ()


BEAT = Delta()  # a sign of life: the work goes on, and adds nothing to the answer


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens. `cached_tokens` are those of the prompt that came from a prefix cache."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Final:
    """How the answer ended and where all of it came from."""

    finish_reason: str
    usage: Usage
    tier: Tier
    release: str = ""
    weight_digest: str = ""
    precision: int = 0
    weight_format: str = ""
    confidence: float | None = None
    threshold: float | None = None
    reason: Reason = Reason.CONFIDENT
    degraded: bool = False
    wanted_reason: Reason | None = None
    audited: bool = False
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    draft_tokens_offered: int = 0
    draft_tokens_accepted: int = 0
    draft_status: str = ""
    hops: int = 0
    request_id: str = ""
    node: str = ""
    signals: Signals | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    edge_tokens_spent: int = 0


GenerateEvent = Committed | Delta | Final
