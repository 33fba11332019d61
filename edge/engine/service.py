"""The engine as the rest of the node sees it: Inference over the weights in force.

Everything that takes long leaves the event loop: prompts are tokenized and releases loaded in
threads, tokens come from the decode thread. Who comes in, and what is told and done of the engine itself, is
`control`'s (edge.engine.control). Each answer names the weights that made it, taken from the session it ran on.

Must not know: routing, upstreams, confidence.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial

from edge.engine.batcher import Batcher
from edge.engine.choice import chosen
from edge.engine.config import EngineConfig
from edge.engine.control import Control
from edge.engine.decoder import decoder
from edge.engine.job import Ended, Job, Scored
from edge.engine.looking import memory_here
from edge.engine.model import Model, Opener, open_model
from edge.engine.room import Memory
from edge.engine.tokenizing import Tokenizing
from edge.engine.tools import CallReader, Grammars
from edge.engine.weights import Weights
from edge.engine.words import choices_of, delta, sampling_params, scored, wire_signals
from wire.capabilities import demand_capable
from wire.description import Description
from wire.messages import Committed, Context, Delta, Final, GenerateEvent, GenerateRequest, Reason, Tier, Usage
from wire.scoring import Scored as ScoredAnswer
from wire.scoring import ScoreRequest
from wire.service import CHANGING, Call
from wire.validate import check_request, check_score

_TOKENIZING_THREADS = 2


class EngineService:
    """Satisfies InferenceService and Scores of wire; `control` EngineControl. Starts without a model: see `load`."""

    def __init__(
        self,
        config: EngineConfig,
        broken: Callable[[str], None],
        opener: Opener = open_model,
        look: Callable[[], Memory] | None = None,
    ) -> None:
        """`broken` is told when the model broke and the process must be replaced. See Weights for `look`."""
        self._config = config
        making = decoder(config, opener, look or partial(memory_here, config))
        self.control = Control(
            Weights(config, broken, making, look), config.node, config.slots, config.max_queue, "requests"
        )
        self._tokenizing = Tokenizing(_TOKENIZING_THREADS)
        self._grammars = Grammars()

    async def load(self) -> None:
        """Loads the configured release. Raises NotFound, PreconditionFailed."""
        await self.control.weights.load()

    def close(self) -> None:
        """Fails what runs as Unavailable and ends the threads."""
        self.control.close()
        self._tokenizing.close()
        self._grammars.close()

    async def describe(self, call: Call, probe_bytes: int = 0) -> Description:
        """See InferenceService."""
        return await self.control.describe(call, probe_bytes)

    async def generate(self, request: GenerateRequest, call: Call) -> AsyncGenerator[GenerateEvent, None]:
        """See InferenceService."""
        began = time.monotonic()
        self.control.demand_ready()
        check_request(request, self.control.limits)
        async with self.control.inside(call) as waited_s:
            batcher, job = await self._prepared(request, call)
            # Closed at once when the caller leaves, not some time after: the weights may wait to be let go.
            async with aclosing(self._answer(batcher, job, request, began, waited_s)) as events:
                async for event in events:
                    yield event

    async def score(self, request: ScoreRequest, call: Call) -> ScoredAnswer:
        """See wire.scoring.Scores."""
        self.control.demand_ready()
        check_score(request, self.control.limits)
        async with self.control.inside(call):
            model, batcher = self.control.serving(request.model)
            prompt = GenerateRequest(messages=request.messages, prompt=request.prompt)
            job = await self._scoring(model, prompt, request.continuations, request.context, call)
            ticket = batcher.submit(job)
            try:
                event = await ticket.next()
            finally:
                ticket.cancel()
        assert isinstance(event, Scored)
        return scored(event, job)

    async def _scoring(
        self, model: Model, prompt: GenerateRequest, texts: tuple[str, ...], context: Context, call: Call
    ) -> Job:
        """A job that scores `texts` as what follows the prompt."""
        prompt_ids, continuations = await self._tokenizing.of(call.deadline, model.continuation_ids, prompt, texts)
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
        model, batcher = self.control.serving(request.model)
        demand_capable(request, model.info.capabilities, "this engine")
        if (choices := choices_of(request)) is not None:
            return batcher, await self._scoring(model, request, choices, request.context, call)
        prompt_ids = await self._tokenizing.of(call.deadline, model.prompt_ids, request)
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
