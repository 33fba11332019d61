"""An Engine on transformers' continuous batching. Lives in rank 0; the other ranks follow its batch.

Invariants: a request that ends, for whatever reason, has left the batch before the next decode step;
text is streamed as tokens come and never holds half a character; a stop sequence ends the answer and
is never shown; log-probs are of the distribution before sampling settings.

Must not know: sockets, tiers above, how weights were loaded.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from cloud.engine import TRANSFORMERS, EngineCapabilities, EngineHealth, weight_bits, weight_format
from cloud.rank.chat import Chat
from cloud.rank.spec import RankSpec
from runtime.text import TextStream
from wire.capabilities import demand_capable
from wire.deadline import Deadline
from wire.description import ModelInfo
from wire.errors import ContextTooLong, DeadlineExceeded, InvalidRequest, Overloaded, Unavailable
from wire.messages import Delta, Final, GenerateRequest, Reason, Tier, Usage


class Batching(Protocol):
    """What the engine needs of cloud.rank.batching.Batch."""

    manager: Any

    @property
    def running(self) -> bool: ...
    @property
    def fault(self) -> str: ...
    @property
    def decode_steps(self) -> int: ...
    @property
    def active(self) -> int: ...
    @property
    def queued(self) -> int: ...
    def forget(self, request_id: str, cancel: bool) -> None: ...


@dataclass(slots=True)
class _Answer:
    """One request on its way through the batch."""

    id: str
    request: GenerateRequest
    prompt_tokens: int
    text: TextStream
    results: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)  # one result per token: bounded by max_tokens
    seen: int = 0
    finish_reason: str = ""
    left_batch: bool = False  # the batch has ended it by itself
    asked_at: float = field(default_factory=time.perf_counter)
    first_at: float | None = None
    admitted_at: float = -1.0
    tokenize_ms: float = 0.0


class TransformersEngine:
    """Satisfies cloud.engine.Engine."""

    def __init__(self, batch: Batching, chat: Chat, spec: RankSpec, weight_digest: str) -> None:
        self._batch, self._chat, self._spec = batch, chat, spec
        self._weight_digest = weight_digest
        self.release = spec.release or f"{spec.name}@0.0.0+{weight_digest[:12]}"
        self._numbers = itertools.count()
        self._running = 0
        self._draining = False

    @property
    def capabilities(self) -> EngineCapabilities:
        return TRANSFORMERS

    @property
    def model(self) -> ModelInfo:
        """What is served, for Describe."""
        spec = self._spec
        return ModelInfo(
            name=spec.name,
            release=self.release,
            tasks=self.capabilities.tasks,
            capabilities=self.capabilities.names(),
            tokenizer_digest=self._chat.digest,
            precision=weight_bits(spec.precision),
            weight_format=weight_format(spec.precision),
            weight_digest=self._weight_digest,
            context_length=spec.context_length,
            max_output_tokens=spec.max_output_tokens,
            precisions_available=(weight_bits(spec.precision),),
        )

    def health(self) -> EngineHealth:
        """See Engine."""
        running = self._batch.running
        detail = "" if running else f"the batch loop ended: {self._batch.fault or 'stopped'}"
        return EngineHealth(
            ok=running and not self._draining,
            detail="draining" if running and self._draining else detail,
            active=self._batch.active,
            queued=self._batch.queued,
            slots=self._spec.slots,
            decode_steps=self._batch.decode_steps,
        )

    async def drain(self) -> int:
        """See Engine."""
        self._draining = True
        return self._running

    async def generate(self, request: GenerateRequest, deadline: Deadline) -> AsyncIterator[Delta | Final]:
        """See Engine."""
        self._admit(request)
        self._running += 1
        answer: _Answer | None = None
        try:
            answer = await self._enter(request)
            while not answer.finish_reason:
                delta = self._advance(answer, await self._next(answer, deadline))
                if delta is not None:
                    yield delta
            yield self._final(answer)
        finally:
            self._running -= 1
            if answer is not None:
                self._batch.forget(answer.id, cancel=not answer.left_batch)

    def _admit(self, request: GenerateRequest) -> None:
        spec = self._spec
        if self._draining:
            raise Unavailable("this engine is draining; ask another one")
        if self._running >= spec.slots + spec.max_queue:
            raise Overloaded(f"{self._running} requests run or wait here, the most there may be; try again later")
        demand_capable(request, self.capabilities.names(), "this engine")
        wanted = request.sampling.max_tokens
        if wanted is not None and wanted > spec.max_output_tokens:
            raise InvalidRequest(f"max_tokens is {wanted}; this model answers with at most {spec.max_output_tokens}")

    async def _enter(self, request: GenerateRequest) -> _Answer:
        began = time.perf_counter()
        ids = await asyncio.to_thread(self._chat.encode, request)
        most = self._output_limit(request, len(ids))
        answer = _Answer(f"r{next(self._numbers)}", request, len(ids), TextStream(self._chat.decode, request.stop))
        answer.tokenize_ms = (time.perf_counter() - began) * 1e3
        self._batch.manager.register_result_handler(answer.id, answer.results.put_nowait)
        entered = self._batch.manager.add_request(
            ids,
            request_id=answer.id,
            max_new_tokens=most,
            streaming=True,
            eos_token_id=self._chat.eos_token_ids or -1,
            **_settings(request),
        )
        if entered is None:
            self._batch.forget(answer.id, cancel=False)
            raise Unavailable(f"the engine takes no requests: {self._batch.fault or 'it is stopping'}")
        return answer

    def _output_limit(self, request: GenerateRequest, prompt_tokens: int) -> int:
        spec = self._spec
        room = spec.context_length - prompt_tokens
        wanted = request.sampling.max_tokens
        if room < 1 or (wanted is not None and wanted > room):
            asked = f" and {wanted} more were asked for" if wanted is not None else ""
            raise ContextTooLong(
                f"the prompt has {prompt_tokens} tokens{asked}; prompt and answer together may have "
                f"{spec.context_length}: shorten the prompt or lower max_tokens"
            )
        return min(wanted or spec.max_output_tokens, room)

    async def _next(self, answer: _Answer, deadline: Deadline) -> Any:
        try:
            async with asyncio.timeout(max(deadline.remaining_s(), 0.0)):
                result = await answer.results.get()
        except TimeoutError:
            raise DeadlineExceeded(
                f"the deadline passed after {answer.seen} tokens; allow more time or ask for fewer"
            ) from None
        answer.left_batch = result.is_finished()
        if result.error is not None:
            raise Unavailable(f"the engine broke off: {result.error}")
        return result

    def _advance(self, answer: _Answer, result: Any) -> Delta | None:
        """The event for the tokens that are new in `result`; None when there is nothing to show yet."""
        if answer.first_at is None:
            answer.first_at, answer.admitted_at = time.perf_counter(), result.lifespan[0]
        tokens = result.generated_tokens[answer.seen :]
        logprobs = result.logprobs[answer.seen :]
        answer.seen += len(tokens)
        ended = bool(tokens) and tokens[-1] in self._chat.eos_token_ids
        shown = tokens[:-1] if ended else tokens
        piece = answer.text.push(shown)
        text = piece.text
        if piece.stopped:
            answer.finish_reason = "stop"
        elif result.is_finished():
            text += answer.text.finish().text
            answer.finish_reason = "stop" if ended else "length"
        with_details = answer.request.return_logprobs
        if not text and not (with_details and shown):
            return None
        if not with_details:
            return Delta(text)
        spelled = self._chat.token_bytes(shown)
        return Delta(text, tuple(shown), tuple(logprobs[: len(shown)]), token_bytes=spelled)

    def _final(self, answer: _Answer) -> Final:
        request, now = answer.request, time.perf_counter()
        first = answer.first_at if answer.first_at is not None else now
        admitted = answer.admitted_at if answer.admitted_at > 0 else answer.asked_at
        return Final(
            finish_reason=answer.finish_reason,
            usage=Usage(answer.prompt_tokens, answer.seen),
            tier=Tier.CLOUD,
            release=self.release,
            weight_digest=self._weight_digest,
            precision=weight_bits(self._spec.precision),
            weight_format=weight_format(self._spec.precision),
            reason=Reason.CLOUD_ONLY,
            timings_ms={
                "engine_tokenize": answer.tokenize_ms,
                "engine_queue": max(admitted - answer.asked_at, 0.0) * 1e3,
                "engine_prefill": max(first - admitted, 0.0) * 1e3,
                "engine_decode": (now - first) * 1e3,
            },
            draft_tokens_offered=len(request.draft.token_ids) if request.draft else 0,
            draft_status="unsupported" if request.draft else "",
            hops=request.hops,
            request_id=request.request_id,
            node=self._spec.node,
        )


def _settings(request: GenerateRequest) -> dict[str, Any]:
    """What the sampler of every rank needs to know of a request."""
    s = request.sampling
    settings: dict[str, Any] = {"logprobs": True} if request.return_logprobs else {}
    if not s.greedy:
        settings |= {
            "temperature": s.temperature,
            "top_k": s.top_k or 0,
            "top_p": 1.0 if s.top_p is None else s.top_p,
            "seed": secrets.randbits(64) if s.seed is None else s.seed,
        }
    return settings
