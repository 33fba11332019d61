"""Several answers to one HTTP request, made side by side: each a request of its own to the service.

Invariants: nothing is shown before every answer has begun, so that a fault before the first word is an
ordinary HTTP error; one answer's fault ends all of them; closing frees every slot; what waits to be sent is
bounded, so that a client that reads slowly slows its answers and nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from wire.errors import WeirError
from wire.messages import Delta, Final, GenerateEvent, GenerateRequest, Usage
from wire.service import Call, InferenceService

_WAITING = 16
_UINT64 = 1 << 64

Indexed = tuple[int, GenerateEvent]


def copies(request: GenerateRequest, n: int) -> list[GenerateRequest]:
    """`n` requests for the same: of different seeds where one was given, and keys of their own."""
    return [request, *(_copy(request, index) for index in range(1, n))]


def _copy(request: GenerateRequest, index: int) -> GenerateRequest:
    sampling = request.sampling
    if sampling.seed is not None:
        sampling = replace(sampling, seed=(sampling.seed + index) % _UINT64)
    key = f"{request.idempotency_key}#{index}" if request.idempotency_key else ""
    return replace(request, sampling=sampling, idempotency_key=key, request_id=f"{request.request_id}-{index}")


@dataclass(slots=True)
class Answer:
    """One whole answer."""

    deltas: list[Delta] = field(default_factory=list)
    final: Final | None = None

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def end(self) -> Final:
        if self.final is None:
            raise WeirError("the answer ended without saying how")
        return self.final


class Choices:
    """The answers to `requests`, from their first event to their last. Close it on every way out."""

    def __init__(self, service: InferenceService, requests: Sequence[GenerateRequest], call: Call) -> None:
        self._streams = [service.generate(request, call) for request in requests]
        self._firsts: list[GenerateEvent] = []

    async def first(self) -> Sequence[GenerateEvent]:
        """The first event of each. Raises WeirError, and has closed everything then."""
        tasks = [asyncio.create_task(_next(stream)) for stream in self._streams]
        try:
            self._firsts = list(await asyncio.gather(*tasks))
        except BaseException:
            await _ended(tasks)
            await self.aclose()
            raise
        return self._firsts

    async def events(self) -> AsyncGenerator[Indexed, None]:
        """All events with the index of their answer, those that `first` gave as well. Raises WeirError."""
        try:
            for index, event in enumerate(self._firsts):
                yield index, event
            if len(self._streams) == 1:
                async for event in self._streams[0]:
                    yield 0, event
                return
            async with aclosing(self._interleaved()) as events:
                async for indexed in events:
                    yield indexed
        finally:
            await self.aclose()

    async def whole(self) -> list[Answer]:
        """The answers once all are complete. Raises WeirError."""
        answers = [Answer() for _ in self._streams]
        await self.first()
        async with aclosing(self.events()) as events:
            async for index, event in events:
                if isinstance(event, Delta):
                    answers[index].deltas.append(event)
                elif isinstance(event, Final):
                    answers[index].final = event
        return answers

    async def aclose(self) -> None:
        for stream in self._streams:
            await stream.aclose()

    async def _interleaved(self) -> AsyncGenerator[Indexed, None]:
        queue: asyncio.Queue[Indexed | WeirError | int] = asyncio.Queue(_WAITING)
        tasks = [asyncio.create_task(_pump(index, stream, queue)) for index, stream in enumerate(self._streams)]
        running = len(tasks)
        try:
            while running:
                told = await queue.get()
                if isinstance(told, WeirError):
                    raise told
                if isinstance(told, int):
                    # An answer ended; had it broken in a way nobody foresaw, this raises.
                    await tasks[told]
                    running -= 1
                else:
                    yield told
        finally:
            await _ended(tasks)


async def _pump(
    index: int, stream: AsyncGenerator[GenerateEvent, None], queue: asyncio.Queue[Indexed | WeirError | int]
) -> None:
    try:
        async for event in stream:
            await queue.put((index, event))
    except WeirError as error:
        await queue.put(error)
    finally:
        # A cancelled task leaves at once: nobody reads any more.
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            await queue.put(index)


async def _ended(tasks: Sequence[asyncio.Task[object]] | Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def total(usages: Sequence[Usage], per_prompt: int) -> Usage:
    """The tokens of all answers. A prompt counts once, however many (`per_prompt`) answers it got."""
    firsts = usages[::per_prompt]
    return Usage(
        sum(usage.prompt_tokens for usage in firsts),
        sum(usage.completion_tokens for usage in usages),
        sum(usage.cached_tokens for usage in firsts),
    )


async def _next(events: AsyncGenerator[GenerateEvent, None]) -> GenerateEvent:
    return await anext(events)
