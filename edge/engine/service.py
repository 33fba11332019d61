"""The engine as the rest of the node sees it: Inference and EngineControl over the weights in force.

Everything that takes long leaves the event loop: prompts are tokenized and releases loaded in
threads, tokens come from the decode thread. At any time at most slots + max_queue requests are here,
in whatever stage, the wait for other weights included. Each answer names the weights that made it,
taken from the session it ran on.

Must not know: routing, upstreams, confidence.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path

from edge.engine.batcher import Batcher
from edge.engine.choice import chosen
from edge.engine.config import EngineConfig
from edge.engine.job import Ended, Job, Scored, Served
from edge.engine.making import Making
from edge.engine.model import Model, Opener, memory_here, open_model
from edge.engine.room import Memory, kv_tokens
from edge.engine.tools import CallReader, Grammars
from edge.engine.weights import Weights
from edge.engine.words import choices_of, delta, sampling_params, scored, wire_signals
from runtime.ort.steps import BLOCK_TOKENS
from runtime.version import weir_version
from wire.capabilities import demand_capable
from wire.errors import InvalidRequest, NotFound, Overloaded, Unavailable
from wire.messages import (
    Activation,
    Committed,
    Context,
    Delta,
    Description,
    EngineStatus,
    Final,
    GenerateEvent,
    GenerateRequest,
    Limits,
    Reason,
    Tier,
    Usage,
)
from wire.scoring import Scored as ScoredAnswer
from wire.scoring import ScoreRequest
from wire.service import CHANGING, Call
from wire.validate import RequestLimits, check_request, check_score

_TOKENIZING_THREADS = 2


class EngineService:
    """Satisfies InferenceService, Scores and EngineControl of wire. Starts without a model: see `load`."""

    def __init__(
        self,
        config: EngineConfig,
        broken: Callable[[str], None],
        opener: Opener = open_model,
        look: Callable[[], Memory] | None = None,
    ) -> None:
        """`broken` is told when the model broke and the process must be replaced. See Weights for `look`."""
        self._config = config
        self._limits, self._version = RequestLimits(), weir_version()
        self._here = 0
        self._draining = False
        fits = partial(_fits, config, look or partial(memory_here, config))
        making = Making(
            partial(opener, config),
            partial(_begin, config, fits),
            partial(_switch, config, fits),
            _shed,
            lambda batcher: batcher.promised_bytes,
            lambda batcher, model: batcher.allow(fits(model.served, batcher.taken_bytes)),
        )
        self._weights: Weights[Model, Batcher] = Weights(config, broken, making, look)
        self._tokenizing = ThreadPoolExecutor(_TOKENIZING_THREADS, "tokenize")
        self._grammars = Grammars()

    async def load(self) -> None:
        """Loads the configured release. Raises NotFound, PreconditionFailed."""
        await self._weights.load()

    def close(self) -> None:
        """Fails what runs as Unavailable and ends the threads."""
        self._draining = True
        self._weights.close()
        self._tokenizing.shutdown(wait=False, cancel_futures=True)
        self._grammars.close()

    async def generate(self, request: GenerateRequest, call: Call) -> AsyncGenerator[GenerateEvent, None]:
        """See InferenceService."""
        began = time.monotonic()
        self._demand_ready()
        check_request(request, self._limits)
        async with self._inside(call) as waited_s:
            batcher, job = await self._prepared(request, call)
            # Closed at once when the caller leaves, not some time after: the weights may wait to be let go.
            async with aclosing(self._answer(batcher, job, request, began, waited_s)) as events:
                async for event in events:
                    yield event

    async def score(self, request: ScoreRequest, call: Call) -> ScoredAnswer:
        """See wire.scoring.Scores."""
        self._demand_ready()
        check_score(request, self._limits)
        async with self._inside(call):
            model, batcher = self._model(request.model)
            prompt = GenerateRequest(messages=request.messages, prompt=request.prompt)
            job = await self._scoring(model, prompt, request.continuations, request.context, call)
            ticket = batcher.submit(job)
            try:
                event = await ticket.next()
            finally:
                ticket.cancel()
        assert isinstance(event, Scored)
        return scored(event, job)

    @asynccontextmanager
    async def _inside(self, call: Call) -> AsyncIterator[float]:
        """One of those who are here, and inside the gate; gives the seconds that took."""
        most = self._config.slots + self._config.max_queue
        if self._here >= most:
            raise Overloaded(f"{self._here} requests are here already, of at most {most}; try again later")
        self._here += 1
        try:
            async with self._weights.gate.passed(call.deadline) as waited_s:
                yield waited_s
        finally:
            self._here -= 1

    def _model(self, name: str) -> tuple[Model, Batcher]:
        model, batcher = self._weights.serving()
        if not model.answers_to(name):
            raise NotFound(f"no model {name!r} here; this engine serves {model.info.name!r}")
        return model, batcher

    async def _scoring(
        self, model: Model, prompt: GenerateRequest, texts: tuple[str, ...], context: Context, call: Call
    ) -> Job:
        """A job that scores `texts` as what follows the prompt."""
        prompt_ids, continuations = await asyncio.get_running_loop().run_in_executor(
            self._tokenizing, model.continuation_ids, prompt, texts
        )
        call.deadline.check()
        return Job(
            model.served,
            prompt_ids,
            max(map(len, continuations)),
            call.deadline,
            continuations=continuations,
            tenant=context.tenant,
            priority=context.priority,
            value=context.value,
        )

    async def _prepared(self, request: GenerateRequest, call: Call) -> tuple[Batcher, Job]:
        """The request as a job for the weights that are in force; for use inside the gate."""
        model, batcher = self._model(request.model)
        demand_capable(request, model.info.capabilities, "this engine")
        if (choices := choices_of(request)) is not None:
            return batcher, await self._scoring(model, request, choices, request.context, call)
        prompt_ids = await asyncio.get_running_loop().run_in_executor(self._tokenizing, model.prompt_ids, request)
        constraint = await self._grammars.constraint(
            request, model.constraints, model.tokenizer.call_form, call.deadline
        )
        call.deadline.check()
        most = model.answer_tokens(len(prompt_ids), request.sampling.max_tokens)
        if request.sampling.max_tokens is None:
            most = max(min(most, batcher.tokens_for(model.served) - len(prompt_ids)), 1)
        context = request.context
        job = Job(
            model.served,
            prompt_ids,
            most,
            call.deadline,
            request.stop,
            sampling_params(request.sampling, model.served.steps.vocab_size),
            constraint,
            top_logprobs=request.top_logprobs,
            tenant=context.tenant,
            priority=context.priority,
            value=context.value,
        )
        return batcher, job

    async def _answer(
        self, batcher: Batcher, job: Job, request: GenerateRequest, began: float, waited_s: float
    ) -> AsyncGenerator[GenerateEvent, None]:
        ticket, reader = batcher.submit(job), CallReader(request)
        submitted, ttft = time.monotonic(), None
        produced: int | None = None
        try:
            while True:
                event = await ticket.next()
                if ttft is None:
                    ttft = time.monotonic() - began
                    yield Committed(Tier.EDGE, Reason.EDGE_ONLY, request.request_id, job.served.release)
                if isinstance(event, Scored):
                    tokens, event = chosen(event, job, choices_of(request) or ())
                    for token in tokens:
                        yield delta(token, request, job.served.token_bytes)
                    produced = len(tokens)
                if isinstance(event, Ended):
                    break
                event = reader.seen(event)
                if event.text or request.return_logprobs or request.return_signals:
                    yield delta(event, request, job.served.token_bytes)
        finally:
            ticket.cancel()
        rest, calls = reader.finish(event.text)
        if rest:
            yield Delta(rest)
        timings = {
            "tokenize": (submitted - began - waited_s) * 1e3,
            "queue": event.queue_ms,
            "prefill": event.prefill_ms,
            "decode": event.decode_ms,
            "ttft": ttft * 1e3,
            "total": (time.monotonic() - began) * 1e3,
        }
        if waited_s:
            timings[CHANGING] = waited_s * 1e3
        usage = Usage(len(job.prompt_ids), event.signals.tokens if produced is None else produced, event.cached_tokens)
        yield reader.told(self._final(event, request, usage, timings), calls)

    def _final(self, ended: Ended, request: GenerateRequest, usage: Usage, timings: dict[str, float]) -> Final:
        served = ended.served
        return Final(
            ended.finish_reason,
            usage,
            Tier.EDGE,
            release=served.release,
            weight_digest=served.weight_digest,
            precision=served.precision,
            weight_format=f"nested-{served.precision}",
            reason=Reason.EDGE_ONLY,
            timings_ms=timings,
            draft_tokens_offered=len(request.draft.token_ids) if request.draft else 0,
            draft_status="unsupported" if request.draft else "",
            hops=request.hops,
            request_id=request.request_id,
            node=self._config.node,
            signals=wire_signals(ended.signals) if request.return_signals else None,
        )

    async def describe(self, call: Call, probe_bytes: int = 0) -> Description:  # noqa: ARG002 - the contract's
        """See InferenceService."""
        info, ready = self._weights.info, self._state() == "ready"
        config = self._config
        return Description(
            config.node,
            Tier.EDGE,
            version=self._version,
            models=() if info is None else (info,),
            limits=Limits(
                self._limits.max_prompt_bytes, config.slots + config.max_queue, config.max_queue, self._limits.max_hops
            ),
            ready=ready,
            not_ready_reason="" if ready else self._state(),
            padding=b"\0" * probe_bytes,
        )

    async def activate(self, release_dir: str, precision: int, call: Call) -> Activation:
        """See EngineControl."""
        if precision not in (4, 8):
            raise InvalidRequest(f"precision is {precision}; use 4 or 8")
        self._demand_ready()
        return await self._weights.put(Path(release_dir) if release_dir else None, precision, call.deadline)

    async def status(self, call: Call) -> EngineStatus:  # noqa: ARG002 - the contract's
        """See EngineControl."""
        weights = self._weights
        info, batcher = weights.info, weights.batcher
        return EngineStatus(
            self._state(),
            weights.detail,
            active=weights.active,
            queued=weights.queued,
            slots=self._config.slots,
            decode_steps=weights.decode_steps,
            release=info.release if info else "",
            precision=info.precision if info else 0,
            weight_digest=info.weight_digest if info else "",
            pid=os.getpid(),
            kv_tokens=batcher.kv_tokens if batcher else 0,
            kv_tokens_used=batcher.kv_tokens_used if batcher else 0,
            prefix_tokens=batcher.prefix_tokens if batcher else 0,
            prefix_hit_tokens=batcher.prefix_hit_tokens if batcher else 0,
        )

    async def drain(self, call: Call) -> int:  # noqa: ARG002 - the contract's
        """See EngineControl."""
        self._draining = True
        return self._here

    def _state(self) -> str:
        state = self._weights.state
        return "draining" if self._draining and state != "down" else state

    def _demand_ready(self) -> None:
        if self._draining:
            raise Unavailable("this engine is draining; try again, another one takes over")
        if self._weights.state == "starting":
            self._weights.serving()


def _begin(
    config: EngineConfig,
    fits: Callable[[Served], int],
    model: Model,
    broken: Callable[[str], None],
    retired: Callable[[], None],
) -> Batcher:
    return Batcher(
        model.served,
        config.slots,
        config.max_queue,
        broken,
        retired,
        kv_tokens=fits(model.served),
        keep_answers=config.prefix_cache_answers,
    )


def _fits(config: EngineConfig, look: Callable[[], Memory], served: Served, taken: int = 0) -> int:
    """How many tokens' KV there may be; `taken` bytes are in memory, kept prefixes included."""
    steps, per_token = served.steps, served.kv_bytes_per_token
    promised = steps.prefix_blocks * BLOCK_TOKENS * per_token
    return kv_tokens(config.kv_tokens, config.slots * steps.capacity, per_token, look(), promised - taken)


def _switch(config: EngineConfig, fits: Callable[[Served, int], int], batcher: Batcher, model: Model) -> None:
    # Beside the old weights there is less room than later.
    later = config.slots * model.served.steps.capacity
    if config.kv_tokens is not None:
        later = min(later, config.kv_tokens)
    batcher.switch(model.served, fits(model.served, batcher.taken_bytes), later)


def _shed(batcher: Batcher) -> None:
    if batcher.prefix_tokens:
        batcher.shed()
