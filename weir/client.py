"""The client that applications use: ask a node, and be told where the answer came from.

    from weir import Client
    with Client("127.0.0.1:50051") as client:
        answer = client.generate("Where is my parcel?", max_tokens=40)
        print(answer.text, answer.tier, answer.reason)

Works against every tier, since all of them serve the same service. Nothing is retried: a retry is
the caller's choice, with the same `idempotency_key`. Errors are those of `wire.errors`, raised here
as the server raised them.

Must not know: components, releases, the command line.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self, TypedDict, Unpack

from wire.channel import ClientTls, Metadata
from wire.classification import Classified, ClassifyRequest
from wire.deadline import Deadline
from wire.description import Description
from wire.errors import InvalidRequest, WeirError
from wire.grpc_client import InferenceClient
from wire.messages import (
    Committed,
    Constraints,
    Context,
    Delta,
    Final,
    GenerateRequest,
    Message,
    Reason,
    ResponseFormat,
    Sampling,
    Signals,
    Tier,
    TierConstraint,
    Usage,
)
from wire.service import Call

DEFAULT_DEADLINE_S = 30.0
# A caller that reads pieces wants them as they come; one that waits for the whole wants the node to have
# judged all of it. See docs/adr/0004.
STREAM_COMMIT_RULE = "prefix:8"

Prompt = str | Iterable[Message | Mapping[str, str]]


class Options(TypedDict, total=False):
    """What may be said beside the prompt. Everything left out is the serving node's default.

    `tier` is auto, edge_only or cloud_only. `deadline_s` is shared by every tier on the way.
    `commit_rule` is "end" or "prefix:<tokens>": when a node may show edge tokens. Left out, `stream`
    asks for STREAM_COMMIT_RULE and `generate` leaves it to the node. `raw` sends the prompt as it is,
    without the model's chat template.
    """

    model: str
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    stop: str | Iterable[str]
    seed: int
    tier: Literal["auto", "edge_only", "cloud_only"]
    max_risk: float
    commit_rule: str
    response_format: ResponseFormat
    deadline_s: float
    session_id: str
    tenant: str
    site: str
    request_class: str
    value: float
    priority: int
    subject: str
    idempotency_key: str
    request_id: str
    return_signals: bool
    traceparent: str
    raw: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer and its provenance; `first_chunk_ms` and `total_ms` are as this client saw them.

    `confidence` is the calibrated probability that the cloud would have answered the same, held
    against `threshold`; None where no edge took part. `degraded` says that it wanted to escalate for
    `wanted_reason` and that `reason` stood in the way. `edge_tokens_spent` counts the tokens that edges
    decoded for this request and that are not in the answer, whoever gave it.
    """

    text: str
    tier: Tier
    reason: Reason
    finish_reason: str
    usage: Usage
    release: str = ""
    precision: int = 0
    weight_format: str = ""
    weight_digest: str = ""
    confidence: float | None = None
    threshold: float | None = None
    degraded: bool = False
    wanted_reason: Reason | None = None
    audited: bool = False
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    draft_tokens_offered: int = 0
    draft_tokens_accepted: int = 0
    draft_status: str = ""
    edge_tokens_spent: int = 0
    hops: int = 0
    request_id: str = ""
    node: str = ""
    signals: Signals | None = None
    first_chunk_ms: float | None = None
    total_ms: float = 0.0


_SHARED = tuple(name for name in Answer.__dataclass_fields__ if name in Final.__dataclass_fields__)


def build_request(prompt: Prompt, options: Options) -> GenerateRequest:
    """The request for a prompt (one user turn) or a conversation. Raises InvalidRequest."""
    unknown = set(options) - set(Options.__annotations__)
    if unknown:
        raise TypeError(f"unknown option {sorted(unknown)[0]!r}; known: {', '.join(Options.__annotations__)}")
    stop = options.get("stop", ())
    raw = options.get("raw", False)
    if raw and not isinstance(prompt, str):
        raise InvalidRequest("raw=True takes a text prompt, not messages")
    return GenerateRequest(
        model=options.get("model", ""),
        messages=() if raw else _messages(prompt),
        prompt=prompt if raw and isinstance(prompt, str) else "",
        sampling=Sampling(
            options.get("max_tokens"),
            options.get("temperature"),
            options.get("top_p"),
            options.get("top_k"),
            options.get("seed"),
        ),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        response_format=options.get("response_format"),
        constraints=Constraints(
            _constraint(options.get("tier", "auto")), options.get("max_risk"), options.get("commit_rule", "")
        ),
        context=Context(
            options.get("session_id", ""),
            options.get("tenant", ""),
            options.get("site", ""),
            options.get("request_class", ""),
            options.get("value"),
            options.get("priority", 0),
            options.get("subject", ""),
        ),
        idempotency_key=options.get("idempotency_key", ""),
        return_signals=options.get("return_signals", False),
        request_id=options.get("request_id", ""),
    )


def _constraint(tier: str) -> TierConstraint:
    try:
        return TierConstraint(tier)
    except ValueError as error:
        raise InvalidRequest(f"tier is {tier!r}; use one of {', '.join(TierConstraint)}") from error


def _messages(prompt: Prompt) -> tuple[Message, ...]:
    if isinstance(prompt, str):
        return (Message("user", prompt),) if prompt else ()
    return tuple(_message(turn) for turn in prompt)


def _message(turn: Message | Mapping[str, str]) -> Message:
    if isinstance(turn, Message):
        return turn
    if set(turn) != {"role", "content"}:
        raise InvalidRequest(f"a message has the keys role and content, not {', '.join(sorted(turn)) or 'none'}")
    return Message(turn["role"], turn["content"])


class AnswerStream:
    """The pieces of an answer as they come: an async iterator of text.

    `committed` is set before the first piece. `final` is the whole Answer, once the iterator has
    ended. Leaving early (`aclose`, or the end of an `async with`) frees the work at every tier.
    """

    def __init__(self, service: InferenceClient, request: GenerateRequest, call: Call) -> None:
        self.committed: Committed | None = None
        self._final: Answer | None = None
        self._events = service.generate(request, call)
        self._start = time.monotonic()
        self._first_ms: float | None = None
        self._text: list[str] = []

    @property
    def final(self) -> Answer:
        """The whole answer. Raises RuntimeError while the stream has not ended."""
        if self._final is None:
            raise RuntimeError("the answer has not ended; read the stream to its end first")
        return self._final

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        async for event in self._events:
            match event:
                case Committed():
                    self.committed = event
                case Delta(text=text) if text:
                    self._first_ms = self._elapsed_ms() if self._first_ms is None else self._first_ms
                    self._text.append(text)
                    return text
                case Final():
                    self._final = self._finish(event)
        if self._final is None:
            raise WeirError("the node ended the answer without saying how; look at its log")
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Leaves; what is still being worked on is cancelled."""
        await self._events.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _elapsed_ms(self) -> float:
        return (time.monotonic() - self._start) * 1e3

    def _finish(self, event: Final) -> Answer:
        shared = {name: getattr(event, name) for name in _SHARED}
        return Answer(text="".join(self._text), **shared, first_chunk_ms=self._first_ms, total_ms=self._elapsed_ms())


class ClassifyOptions(TypedDict, total=False):
    """What may be said beside the text; see Options. `top_labels` bounds the scores told (0: all)."""

    model: str
    text_pair: str
    tier: Literal["auto", "edge_only", "cloud_only"]
    max_risk: float
    top_labels: int
    return_logits: bool
    deadline_s: float
    session_id: str
    tenant: str
    site: str
    request_class: str
    value: float
    priority: int
    subject: str
    idempotency_key: str
    request_id: str
    traceparent: str


def build_classify_request(text: str, options: ClassifyOptions) -> ClassifyRequest:
    """The request for a text's label. Raises InvalidRequest."""
    unknown = set(options) - set(ClassifyOptions.__annotations__)
    if unknown:
        raise TypeError(f"unknown option {sorted(unknown)[0]!r}; known: {', '.join(ClassifyOptions.__annotations__)}")
    return ClassifyRequest(
        model=options.get("model", ""),
        text=text,
        text_pair=options.get("text_pair", ""),
        constraints=Constraints(_constraint(options.get("tier", "auto")), options.get("max_risk")),
        context=Context(
            options.get("session_id", ""),
            options.get("tenant", ""),
            options.get("site", ""),
            options.get("request_class", ""),
            options.get("value"),
            options.get("priority", 0),
            options.get("subject", ""),
        ),
        request_id=options.get("request_id", ""),
        idempotency_key=options.get("idempotency_key", ""),
        top_labels=options.get("top_labels", 0),
        return_logits=options.get("return_logits", False),
    )


@dataclass(frozen=True, slots=True)
class _Bearer:
    """Identity by a bearer token; without one, no metadata."""

    token: str | None

    def metadata(self) -> Metadata:
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()


class AsyncClient:
    """A node at `target` (host:port or unix:PATH), for asyncio code."""

    def __init__(self, target: str, *, tls: ClientTls | None = None, token: str | None = None) -> None:
        self.target = target
        self._service = InferenceClient(target, tls, _Bearer(token))

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> AnswerStream:
        """The answer piece by piece. Raises WeirError at the first piece that cannot be had."""
        if "commit_rule" not in options:
            options["commit_rule"] = STREAM_COMMIT_RULE
        return self._ask(prompt, options)

    def _ask(self, prompt: Prompt, options: Options) -> AnswerStream:
        deadline = Deadline.after(options.get("deadline_s", DEFAULT_DEADLINE_S))
        call = Call(deadline, options.get("traceparent", ""))
        return AnswerStream(self._service, build_request(prompt, options), call)

    async def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Answer:
        """The whole answer. Raises WeirError."""
        async with self._ask(prompt, options) as stream:
            async for _ in stream:
                pass
            return stream.final

    async def classify(self, text: str, **options: Unpack[ClassifyOptions]) -> Classified:
        """The text's label, with every label's score and where it came from. Raises WeirError."""
        deadline = Deadline.after(options.get("deadline_s", DEFAULT_DEADLINE_S))
        call = Call(deadline, options.get("traceparent", ""))
        return await self._service.classify(build_classify_request(text, options), call)

    async def describe(self, *, deadline_s: float = 5.0) -> Description:
        """What the node serves. Raises WeirError."""
        return await self._service.describe(Call(Deadline.after(deadline_s)))

    async def close(self) -> None:
        await self._service.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
