"""Measures every precision on this box, once, before the node plans which to hold.

How much slower 8-bit weights are than 4-bit ones depends on the CPU: where int8 has instructions of
its own they prefill faster, elsewhere much slower. A guess would settle the plan before it was ever
tried. So each precision is put in force for a moment and answers one fixed prompt, or labels one text; afterwards the
node serves what it served. Requests that come meanwhile are answered as ever.

Must not know: links, upstreams, the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing

from edge.activation import Activator
from edge.ports import Clock
from router.latency import LatencyEstimate
from wire.capabilities import CLASSIFY
from wire.classification import Classifies, ClassifyRequest
from wire.deadline import Deadline
from wire.description import ModelInfo
from wire.errors import WeirError
from wire.messages import Constraints, Delta, Final, GenerateRequest, Message, Sampling, TierConstraint
from wire.service import Call, InferenceService

REHEARSAL = "rehearsal"
_DEADLINE_S = 30.0
_TOKENS = 8
_TEXT = 140  # characters of it, for classifiers
_TRIES = 3
# About a hundred tokens for most tokenizers, as a short question with its instructions has.
_PROMPT = "A customer writes: the parcel was sent on Monday and has not arrived. " * 6 + "Say what to do next."


class Rehearsal:
    """One per node; `run` is called once per release."""

    def __init__(
        self, engine: InferenceService, activator: Activator, clock: Clock, classifies: Classifies | None = None
    ) -> None:
        """`classifies` is the same engine, for models that label texts."""
        self._engine, self._activator, self._clock, self._classifies = engine, activator, clock, classifies
        self._labels = False

    async def run(self, served: ModelInfo) -> Mapping[int, LatencyEstimate]:
        """How fast each precision is; empty when one could not be measured. Ends with what was served."""
        own, self._labels = served.precision, self._classifies is not None and CLASSIFY in served.tasks
        others = [bits for bits in served.precisions_available if bits != own]
        if not others:
            return {}
        found: dict[int, LatencyEstimate] = {}
        try:
            before = await self._measure()
            for bits in others:
                if not await self._put(served.release, bits):
                    return {}
                found[bits] = await self._measure()
        except WeirError:
            return {}
        finally:
            await self._put(served.release, own)
        try:
            # Once more: what was measured first may have shared the box with its start.
            found[own] = _shortest([before, await self._measure()])
        except WeirError:
            return {}
        return found

    async def _put(self, release: str, bits: int) -> bool:
        return await self._activator.put(None, release, bits, REHEARSAL)

    async def _measure(self) -> LatencyEstimate:
        await self._ask(1)  # the first answer of fresh weights pays for their way into memory
        return _shortest([await self._ask(_TOKENS) for _ in range(_TRIES)])

    async def _ask(self, tokens: int) -> LatencyEstimate:
        if self._labels and self._classifies is not None:
            began = self._clock()
            await self._classifies.classify(ClassifyRequest(text=_PROMPT[:_TEXT]), Call(Deadline.after(_DEADLINE_S)))
            took = self._clock() - began
            return LatencyEstimate().after(took, took, 2)
        request = GenerateRequest(
            messages=(Message("user", _PROMPT),),
            sampling=Sampling(max_tokens=tokens, temperature=0.0),
            constraints=Constraints(TierConstraint.EDGE_ONLY),
            return_logprobs=True,
        )
        began, first = self._clock(), None
        final: Final | None = None
        async with aclosing(self._engine.generate(request, Call(Deadline.after(_DEADLINE_S)))) as events:
            async for event in events:
                if isinstance(event, Delta) and first is None:
                    first = self._clock() - began
                elif isinstance(event, Final):
                    final = event
        if final is None or first is None:
            return LatencyEstimate()
        return LatencyEstimate().after(first, self._clock() - began, final.usage.completion_tokens)


def _shortest(tries: Sequence[LatencyEstimate]) -> LatencyEstimate:
    """The least of each figure: whatever else runs on the box only ever adds."""
    return LatencyEstimate(
        min((one.first_token_s for one in tries if one.first_token_s is not None), default=None),
        min((one.per_token_s for one in tries if one.per_token_s is not None), default=None),
    )
