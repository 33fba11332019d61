"""Asks the upstream for a text's label: once, and once more where it was only away for a moment.

As edge.escalation does for text: the same request one hop further, under the same idempotency key at every try,
and given up where it is silent for longer than the edge, which can answer by itself, should wait (edge.patience).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from edge.classify_run import ClassifyRun
from edge.escalation import RETRY_AFTER_S, SILENT
from edge.patience import Patience, patience_with, tell_failure
from edge.ports import Clock, Local, Outlook
from wire.classification import Classified, Classifies
from wire.errors import DeadlineExceeded, Unavailable, WeirError
from wire.messages import Final, Usage
from wire.service import Call


class ClassifyEscalator:
    """Sends requests to `upstream`."""

    def __init__(self, upstream: Classifies, outlook: Outlook, local: Local, clock: Clock) -> None:
        self._upstream, self._outlook, self._local, self._clock = upstream, outlook, local, clock

    async def ask(self, run: ClassifyRun) -> Classified:
        """The upstream's answer. Raises WeirError."""
        times = self._times(run)
        run.upstream_began = self._clock()
        try:
            try:
                return await self._once(run, times)
            except Unavailable:
                # A node above tries its own upstream again by itself.
                admits = self._outlook.view(1).admits and not self._outlook.is_node()
                if not admits or times.first_word.remaining_s() <= 2 * RETRY_AFTER_S:
                    raise
            await asyncio.sleep(RETRY_AFTER_S)
            return await self._once(run, times)
        finally:
            run.upstream_ended = self._clock()

    async def _once(self, run: ClassifyRun, times: Patience) -> Classified:
        """One call, with its outcome told to the outlook whatever happens."""
        began, allotted_s = self._clock(), times.first_word.remaining_s()
        call = Call(times.call, run.call.traceparent, run.call.peer)
        self._outlook.started()
        told = False
        request = replace(run.request, model=self._outlook.forward_as(run.request.model), hops=run.request.hops + 1)
        try:
            async with asyncio.timeout(max(allotted_s, 0.0)):
                answer = await self._upstream.classify(request, call)
            took = self._clock() - began
            self._outlook.succeeded(_final(answer), took, took, run.asked.prompt_bytes)
            told = True
            return answer
        except TimeoutError as error:
            told, silent = True, DeadlineExceeded(SILENT)
            tell_failure(self._outlook, silent, times, allotted_s, allotted_s)
            raise silent from error
        except WeirError as error:
            told = True
            tell_failure(self._outlook, error, times, allotted_s, allotted_s)
            raise
        finally:
            if not told:
                self._outlook.abandoned()

    def _times(self, run: ClassifyRun) -> Patience:
        return patience_with(
            self._outlook,
            self._local,
            run.asked,
            run.call.deadline,
            run.asked.prompt_bytes,
            in_hand=run.answer is not None,
            edge_failed=run.edge_error is not None,
        )


def _final(answer: Classified) -> Final:
    """As the outlook keeps it: an answer of one token, whose work is what the tier above said it took."""
    work = {name: answer.timings_ms[name] for name in ("edge_tokenize", "edge_queue") if name in answer.timings_ms}
    named = {name.replace("edge_", "engine_"): ms for name, ms in work.items()}
    if "edge_classify" in answer.timings_ms:
        named["engine_prefill"] = answer.timings_ms["edge_classify"]
    if "upstream_total" in answer.timings_ms:  # it passed the request on: how far that is, it does not say
        named["upstream_first"] = answer.timings_ms["upstream_total"]
    return Final("stop", Usage(answer.tokens, 2), answer.tier, timings_ms=named)
