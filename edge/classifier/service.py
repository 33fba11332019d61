"""The classifying engine as the rest of the node sees it: Classify, Describe and EngineControl over its weights.

A short text is tokenized where it arrives, a long one in a thread; the batches run in theirs. At any time at most
a batch and `max_queue` texts are here, the wait for other weights included. Each answer names the weights that
made it, taken from the session it ran on. Generate is refused by name.

Must not know: routing, upstreams, confidence.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Protocol

from edge.classifier.batcher import BatcherSettings, Labelled, TextBatcher
from edge.classifier.config import ClassifierConfig
from edge.classifier.labels import scored
from edge.classifier.model import Model, open_classifier
from edge.classifier.pick import Bounds
from edge.engine.candidate import Candidate
from edge.engine.making import Making
from edge.engine.room import Memory
from edge.engine.weights import Weights
from runtime.ort.classify import Encoded
from runtime.tokenizer import Tokenizer
from runtime.version import weir_version
from wire.capabilities import demand_classifies
from wire.classification import Classified, ClassifyRequest
from wire.errors import InvalidRequest, NotFound, NotSupported, Overloaded, Unavailable
from wire.messages import (
    Activation,
    Description,
    EngineStatus,
    GenerateEvent,
    GenerateRequest,
    Limits,
    Reason,
    Tier,
)
from wire.service import CHANGING, Call
from wire.validate import RequestLimits, check_classify

_SHORT_BYTES = 2048  # tokenized in less time than a thread takes to begin
_TOKENIZING_THREADS = 1


class Opener(Protocol):
    """Verifies a release for serving: `open_classifier`, or what stands in for it."""

    def __call__(
        self, config: ClassifierConfig, directory: Path, precision: int, known: Tokenizer | None, /
    ) -> Candidate[Model]: ...


class ClassifierService:
    """Satisfies InferenceService, EngineControl and Classifies. Starts without a model: see `load`."""

    def __init__(
        self,
        config: ClassifierConfig,
        broken: Callable[[str], None],
        opener: Opener = open_classifier,
        look: Callable[[], Memory] | None = None,
    ) -> None:
        """`broken` is told when the model broke and the process must be replaced. See Weights for `look`."""
        self._config = config
        self._limits, self._version = RequestLimits(), weir_version()
        self._here = 0
        self._draining = False
        making = Making(partial(opener, config), partial(_begin, config), _switch)
        self._weights: Weights[Model, TextBatcher] = Weights(config, broken, making, look)
        self._tokenizing = ThreadPoolExecutor(_TOKENIZING_THREADS, "tokenize")

    async def load(self) -> None:
        """Loads the configured release. Raises NotFound, PreconditionFailed, Overloaded."""
        await self._weights.load()

    def close(self) -> None:
        """Fails what runs as Unavailable and ends the threads."""
        self._draining = True
        self._weights.close()
        self._tokenizing.shutdown(wait=False, cancel_futures=True)

    async def classify(self, request: ClassifyRequest, call: Call) -> Classified:
        """See Classifies."""
        began = time.monotonic()
        self._demand_ready()
        check_classify(request, self._limits)
        most = self._config.batch_rows + self._config.max_queue
        if self._here >= most:
            raise Overloaded(f"{self._here} texts are here already, of at most {most}; try again later")
        self._here += 1
        try:
            async with self._weights.gate.passed(call.deadline) as waited_s:
                model, batcher = self._weights.serving()
                if not model.answers_to(request.model):
                    raise NotFound(f"no model {request.model!r} here; this engine serves {model.info.name!r}")
                demand_classifies(request, model.info.capabilities, "this engine")
                row = await self._encoded(model, request)
                call.deadline.check()
                submitted = time.monotonic()
                labelled = await batcher.submit(
                    model.served, row, call.deadline, request.context.priority, request.context.value
                )
                timings = {
                    "tokenize": (submitted - began - waited_s) * 1e3,
                    "queue": labelled.queue_ms,
                    "classify": labelled.run_ms,
                    "total": (time.monotonic() - began) * 1e3,
                }
                if waited_s:
                    timings[CHANGING] = waited_s * 1e3
                return self._classified(model, request, row, labelled, timings)
        finally:
            self._here -= 1

    async def _encoded(self, model: Model, request: ClassifyRequest) -> Encoded:
        if len(request.text) + len(request.text_pair) <= _SHORT_BYTES:
            return model.encoded(request)
        return await asyncio.get_running_loop().run_in_executor(self._tokenizing, model.encoded, request)

    def _classified(
        self, model: Model, request: ClassifyRequest, row: Encoded, labelled: Labelled, timings: dict[str, float]
    ) -> Classified:
        served = labelled.served
        scores, labels = scored(model.info.labels, labelled.logits, model.labelling)
        return Classified(
            label=scores[0].label,
            tier=Tier.EDGE,
            scores=scores[: request.top_labels or None],
            labels=labels,
            multi_label=model.labelling.multi_label,
            logits=labelled.logits if request.return_logits else (),
            reason=Reason.EDGE_ONLY,
            release=served.release,
            weight_digest=served.weight_digest,
            precision=served.precision,
            weight_format=f"nested-{served.precision}",
            tokens=len(row),
            timings_ms=timings,
            hops=request.hops,
            request_id=request.request_id,
            node=self._config.node,
        )

    async def generate(self, _request: GenerateRequest, _call: Call) -> AsyncGenerator[GenerateEvent, None]:
        """See InferenceService. Always refused."""
        nothing: tuple[GenerateEvent, ...] = ()
        for event in nothing:  # makes this an async generator
            yield event
        raise NotSupported("this model labels texts and writes none; ask it with Classify, or ask another model")

    async def describe(self, call: Call, probe_bytes: int = 0) -> Description:  # noqa: ARG002 - the contract's
        """See InferenceService."""
        info, state = self._weights.info, self._state()
        config, limits = self._config, self._limits
        return Description(
            config.node,
            Tier.EDGE,
            version=self._version,
            models=() if info is None else (info,),
            limits=Limits(
                limits.max_prompt_bytes, config.batch_rows + config.max_queue, config.max_queue, limits.max_hops
            ),
            ready=state == "ready",
            not_ready_reason="" if state == "ready" else state,
            padding=b"\0" * probe_bytes,
        )

    async def activate(self, release_dir: str, precision: int, call: Call) -> Activation:
        """See EngineControl."""
        if precision not in (4, 8):
            raise InvalidRequest(f"precision is {precision}; use 4 or 8")
        self._demand_ready()
        return await self._weights.put(Path(release_dir) if release_dir else None, precision, call.deadline)

    async def status(self, call: Call) -> EngineStatus:  # noqa: ARG002 - the contract's
        """See EngineControl. Its steps are batches, its slots the texts of one."""
        weights, info = self._weights, self._weights.info
        return EngineStatus(
            self._state(),
            weights.detail,
            active=weights.active,
            queued=weights.queued,
            slots=self._config.batch_rows,
            decode_steps=weights.decode_steps,
            release=info.release if info else "",
            precision=info.precision if info else 0,
            weight_digest=info.weight_digest if info else "",
            pid=os.getpid(),
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
    config: ClassifierConfig, model: Model, broken: Callable[[str], None], retired: Callable[[], None]
) -> TextBatcher:
    bounds = Bounds(config.batch_rows, config.batch_tokens, config.max_padding)
    return TextBatcher(model.served, BatcherSettings(bounds, config.max_queue, config.linger_ms / 1e3), broken, retired)


def _switch(batcher: TextBatcher, model: Model) -> None:
    batcher.switch(model.served)
