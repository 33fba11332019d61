"""The engine as the rest of the node sees it: Inference and EngineControl over one batcher.

Everything that takes long leaves the event loop: prompts are tokenized and releases loaded in
threads, tokens come from the decode thread. At any time at most slots + max_queue requests are here,
in whatever stage. Each answer names the weights that made it, taken from the session it ran on.

Must not know: routing, upstreams, confidence.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from edge.engine.batcher import Batcher
from edge.engine.config import EngineConfig
from edge.engine.job import Ended, Job, Token
from edge.engine.model import Model, Opener, open_model
from router import confidence
from runtime import memory
from runtime.ort.sampling import SamplingParams
from runtime.version import weir_version
from wire.errors import InvalidRequest, NotFound, NotSupported, Overloaded, Unavailable
from wire.messages import (
    Activation,
    Committed,
    Delta,
    Description,
    EngineStatus,
    Final,
    GenerateEvent,
    GenerateRequest,
    Limits,
    Reason,
    ResponseFormat,
    Sampling,
    Signals,
    Tier,
    Usage,
)
from wire.service import Call
from wire.validate import RequestLimits, check_request

_SIGNAL_FIELDS = tuple(Signals.__dataclass_fields__)
_TOKENIZING_THREADS = 2


class EngineService:
    """Satisfies wire.service.InferenceService and EngineControl. Starts without a model: see `load`."""

    def __init__(self, config: EngineConfig, broken: Callable[[str], None], opener: Opener = open_model) -> None:
        """`broken` is told when the model broke and the process must be replaced."""
        self._config, self._broken, self._opener = config, broken, opener
        self._limits, self._version = RequestLimits(), weir_version()
        self._model: Model | None = None
        self._batcher: Batcher | None = None
        self._here = 0
        self._draining = False
        self._activating = asyncio.Lock()
        self._tokenizing = ThreadPoolExecutor(_TOKENIZING_THREADS, "tokenize")
        self._loading = ThreadPoolExecutor(1, "load")

    async def load(self) -> None:
        """Loads the configured release. Raises NotFound, PreconditionFailed."""
        config = self._config
        model = await self._open(config.release_dir, config.precision)
        self._batcher = Batcher(model.served, config.slots, config.max_queue, self._broken, self._retired)
        self._model = model

    def close(self) -> None:
        """Fails what runs as Unavailable and ends the threads."""
        self._draining = True
        if self._batcher is not None:
            self._batcher.close()
        self._tokenizing.shutdown(wait=False, cancel_futures=True)
        self._loading.shutdown(wait=False, cancel_futures=True)

    async def generate(self, request: GenerateRequest, call: Call) -> AsyncIterator[GenerateEvent]:
        """See InferenceService."""
        began = time.monotonic()
        model, batcher = self._serving()
        check_request(request, self._limits)
        _demand_plain_text(request.response_format)
        if not model.answers_to(request.model):
            raise NotFound(f"no model {request.model!r} here; this engine serves {model.info.name!r}")
        most = self._config.slots + self._config.max_queue
        if self._here >= most:
            raise Overloaded(f"{self._here} requests are here already, of at most {most}; try again later")
        self._here += 1
        try:
            prompt_ids = await asyncio.get_running_loop().run_in_executor(self._tokenizing, model.prompt_ids, request)
            call.deadline.check()
            job = Job(
                model.served,
                prompt_ids,
                model.answer_tokens(len(prompt_ids), request.sampling.max_tokens),
                call.deadline,
                request.stop,
                _sampling(request.sampling),
            )
            async for event in self._answer(batcher, job, request, began):
                yield event
        finally:
            self._here -= 1

    async def _answer(
        self, batcher: Batcher, job: Job, request: GenerateRequest, began: float
    ) -> AsyncIterator[GenerateEvent]:
        ticket = batcher.submit(job)
        submitted, ttft = time.monotonic(), None
        try:
            while True:
                event = await ticket.next()
                if ttft is None:
                    ttft = time.monotonic() - began
                    yield Committed(Tier.EDGE, Reason.EDGE_ONLY, request.request_id, job.served.release)
                if isinstance(event, Ended):
                    break
                if event.text or request.return_logprobs or request.return_signals:
                    yield _delta(event, request)
        finally:
            ticket.cancel()
        if event.text:
            yield Delta(event.text)
        timings = {
            "tokenize": (submitted - began) * 1e3,
            "queue": event.queue_ms,
            "prefill": event.prefill_ms,
            "decode": event.decode_ms,
            "ttft": ttft * 1e3,
            "total": (time.monotonic() - began) * 1e3,
        }
        yield self._final(event, request, len(job.prompt_ids), timings)

    def _final(self, ended: Ended, request: GenerateRequest, prompt_tokens: int, timings: dict[str, float]) -> Final:
        served = ended.served
        return Final(
            ended.finish_reason,
            Usage(prompt_tokens, ended.signals.tokens),
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
            signals=_signals(ended.signals) if request.return_signals else None,
        )

    async def describe(self, call: Call, probe_bytes: int = 0) -> Description:  # noqa: ARG002 - the contract's
        """See InferenceService."""
        model, ready = self._model, self._state() == "ready"
        config = self._config
        return Description(
            config.node,
            Tier.EDGE,
            version=self._version,
            models=() if model is None else (model.described(),),
            limits=Limits(
                self._limits.max_prompt_bytes, config.slots + config.max_queue, config.max_queue, self._limits.max_hops
            ),
            ready=ready,
            not_ready_reason="" if ready else self._state(),
            padding=b"\0" * probe_bytes,
        )

    async def activate(self, release_dir: str, precision: int, call: Call) -> Activation:
        """See EngineControl. The running session serves until the new one has been tried."""
        if precision not in (4, 8):
            raise InvalidRequest(f"precision is {precision}; use 4 or 8")
        async with self._activating:
            model, batcher = self._serving()
            directory = Path(release_dir) if release_dir else model.directory
            if (directory, precision) == (model.directory, model.info.precision):
                return Activation(model.info.release, precision, model.info.weight_digest, 0.0)
            call.deadline.check()
            fresh = await self._open(directory, precision, model, memory.free_bytes())
            batcher.switch(fresh.served)
            self._model = fresh
            return Activation(fresh.info.release, precision, fresh.info.weight_digest, fresh.load_ms)

    async def status(self, call: Call) -> EngineStatus:  # noqa: ARG002 - the contract's
        """See EngineControl."""
        model, batcher = self._model, self._batcher
        return EngineStatus(
            self._state(),
            active=batcher.active if batcher else 0,
            queued=batcher.queued if batcher else 0,
            slots=self._config.slots,
            decode_steps=batcher.decode_steps if batcher else 0,
            release=model.info.release if model else "",
            precision=model.info.precision if model else 0,
            weight_digest=model.info.weight_digest if model else "",
            pid=os.getpid(),
        )

    async def drain(self, call: Call) -> int:  # noqa: ARG002 - the contract's
        """See EngineControl."""
        self._draining = True
        return self._here

    def _state(self) -> str:
        if self._batcher is not None and self._batcher.closed:
            return "down"
        if self._draining:
            return "draining"
        return "starting" if self._model is None else "ready"

    def _serving(self) -> tuple[Model, Batcher]:
        if self._draining:
            raise Unavailable("this engine is draining; try again, another one takes over")
        if self._model is None or self._batcher is None:
            raise Unavailable("the engine is still loading its model; try again in a moment")
        return self._model, self._batcher

    def _retired(self) -> None:
        if not self._draining:
            self._loading.submit(memory.trim)

    async def _open(
        self, directory: Path, precision: int, beside: Model | None = None, free_bytes: int | None = None
    ) -> Model:
        return await asyncio.get_running_loop().run_in_executor(
            self._loading, self._opener, self._config, directory, precision, beside, free_bytes
        )


def _demand_plain_text(form: ResponseFormat | None) -> None:
    if form is None or form.type in ("", "text"):
        return
    if form.type in ("json_object", "json_schema"):
        raise NotSupported(f"response_format {form.type} is not served by this engine (no json_schema capability)")
    raise InvalidRequest(f"response_format is {form.type!r}; use text, json_object or json_schema")


def _sampling(s: Sampling) -> SamplingParams:
    return SamplingParams(
        temperature=s.temperature or 0.0,
        top_p=1.0 if s.top_p is None else s.top_p,
        top_k=s.top_k or 0,
        seed=s.seed,
    )


def _delta(token: Token, request: GenerateRequest) -> Delta:
    signals = _signals(token.signals) if request.return_signals else None
    if request.return_logprobs:
        return Delta(token.text, (token.token,), (token.logprob,), signals)
    return Delta(token.text, signals=signals)


def _signals(s: confidence.Signals) -> Signals:
    return Signals(**{name: getattr(s, name) for name in _SIGNAL_FIELDS})
