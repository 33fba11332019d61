"""The classifying engine as the rest of the node sees it: Classify and Describe over its weights.

A short text is tokenized where it arrives, a long one in a thread; the batches run in theirs. Who comes in, and what
is told and done of the engine itself, is `control`'s (edge.engine.control). Each answer names the weights that
made it, taken from the session it ran on. Generate is refused by name.

Must not know: routing, upstreams, confidence.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from functools import partial

from edge.classifier.batcher import BatcherSettings, TextBatcher
from edge.classifier.config import ClassifierConfig
from edge.classifier.job import Labelled
from edge.classifier.labels import scored
from edge.classifier.model import Model, Opener, open_classifier
from edge.classifier.pick import Bounds
from edge.engine.control import Control
from edge.engine.making import Making
from edge.engine.room import Memory
from edge.engine.tokenizing import Tokenizing
from edge.engine.weights import Weights
from runtime.ort.classify import Encoded
from wire.capabilities import demand_classifies
from wire.classification import Classified, ClassifyRequest
from wire.deadline import Deadline
from wire.description import Description
from wire.errors import NotSupported
from wire.messages import GenerateEvent, GenerateRequest, Reason, Tier
from wire.service import CHANGING, Call
from wire.validate import check_classify

_SHORT_BYTES = 2048  # tokenized in less time than a thread takes to begin
_TOKENIZING_THREADS = 1


class ClassifierService:
    """Satisfies InferenceService and Classifies; `control` EngineControl. Starts without a model: see `load`."""

    def __init__(
        self,
        config: ClassifierConfig,
        broken: Callable[[str], None],
        opener: Opener = open_classifier,
        look: Callable[[], Memory] | None = None,
    ) -> None:
        """`broken` is told when the model broke and the process must be replaced. See Weights for `look`."""
        self._config = config
        making = Making(partial(opener, config), partial(_begin, config), _switch)
        # Its steps are batches, its slots the texts of one.
        self.control = Control(
            Weights(config, broken, making, look), config.node, config.batch_rows, config.max_queue, "texts"
        )
        self._tokenizing = Tokenizing(_TOKENIZING_THREADS)

    async def load(self) -> None:
        """Loads the configured release. Raises NotFound, PreconditionFailed, Overloaded."""
        await self.control.weights.load()

    def close(self) -> None:
        """Fails what runs as Unavailable and ends the threads."""
        self.control.close()
        self._tokenizing.close()

    async def describe(self, call: Call, probe_bytes: int = 0) -> Description:
        """See InferenceService."""
        return await self.control.describe(call, probe_bytes)

    async def classify(self, request: ClassifyRequest, call: Call) -> Classified:
        """See Classifies."""
        began = time.monotonic()
        self.control.demand_ready()
        check_classify(request, self.control.limits)
        async with self.control.inside(call) as waited_s:
            model, batcher = self.control.serving(request.model)
            demand_classifies(request, model.info.capabilities, "this engine")
            row = await self._encoded(model, request, call.deadline)
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

    async def _encoded(self, model: Model, request: ClassifyRequest, deadline: Deadline) -> Encoded:
        if len(request.text) + len(request.text_pair) <= _SHORT_BYTES:
            return model.encoded(request)
        return await self._tokenizing.of(deadline, model.encoded, request)

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


def _begin(
    config: ClassifierConfig, model: Model, broken: Callable[[str], None], retired: Callable[[], None]
) -> TextBatcher:
    bounds = Bounds(config.batch_rows, config.batch_tokens, config.max_padding)
    return TextBatcher(model.served, BatcherSettings(bounds, config.max_queue, config.linger_ms / 1e3), broken, retired)


def _switch(batcher: TextBatcher, model: Model) -> None:
    batcher.switch(model.served)
