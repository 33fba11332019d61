"""One computation per idempotency key, however often it is asked for.

    key is new                  computed; the caller reads along
    key is being computed       the caller reads the same events, from the first
    key has an answer           the answer is replayed
    key with another request    Conflict

A failure is not an answer: its key is free again. When every reader has left, the computation is
cancelled and its key is free again. The table lives in one gateway's memory, bounded in entries and
time: losing it (a restart, another replica) can cost a second computation, never a wrong answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

from wire.deadline import Deadline
from wire.errors import Cancelled, Conflict, DeadlineExceeded, Overloaded
from wire.messages import Committed, Delta, Final, GenerateEvent, GenerateRequest

Key = tuple[str, str]  # tenant, idempotency key
Events = AsyncGenerator[GenerateEvent, None]
Start = Callable[[], Events]


def fingerprint(request: GenerateRequest) -> GenerateRequest:
    """What two requests must share to be the same question: all but how they travelled."""
    return replace(request, request_id="", hops=0, draft=None, idempotency_key="")


class _Recording:
    """One computation and the events it has given so far."""

    def __init__(self, asked: GenerateRequest, start: Start) -> None:
        self.asked = asked
        self.events: list[GenerateEvent] = []  # bounded by the answer's own bound
        self.readers = 0
        self.kept_until: float | None = None
        self._changed = asyncio.Event()
        self.task = asyncio.create_task(self._pump(start()))
        self.task.add_done_callback(lambda _: self._wake())

    async def _pump(self, events: Events) -> None:
        async with aclosing(events):
            async for event in events:
                self.events.append(event)
                self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def answered(self) -> bool:
        return self.task.done() and not self.task.cancelled() and self.task.exception() is None

    def replay(self) -> list[GenerateEvent]:
        """The finished answer with its text in one piece."""
        deltas = [event for event in self.events if isinstance(event, Delta)]
        whole = Delta(
            "".join(delta.text for delta in deltas),
            tuple(token for delta in deltas for token in delta.token_ids),
            tuple(logprob for delta in deltas for logprob in delta.logprobs),
            deltas[-1].signals if deltas else None,
        )
        rest = [event for event in self.events if not isinstance(event, Delta)]
        return [*rest[:-1], *([whole] if deltas else []), *rest[-1:]]

    async def read(self, deadline: Deadline) -> Events:
        """The events from the first. Raises what the computation raised."""
        index = 0
        while True:
            changed = self._changed
            while index < len(self.events):
                index += 1
                yield self.events[index - 1]
            if self.task.done():
                if self.task.cancelled():
                    raise Cancelled("the computation of this idempotency key was cancelled; ask again")
                if (error := self.task.exception()) is not None:
                    raise error
                return
            try:
                async with asyncio.timeout(max(deadline.remaining_s(), 0.0)):
                    await changed.wait()
            except TimeoutError:
                raise DeadlineExceeded("the deadline passed before the answer was complete; allow more time") from None


class IdempotencyTable:
    """At most `entries` keys; an answer is kept for `ttl_s`."""

    def __init__(self, ttl_s: float, entries: int, now: Callable[[], float] = time.monotonic) -> None:
        self._ttl_s, self._entries, self._now = ttl_s, entries, now
        self._known: dict[Key, _Recording] = {}

    def __len__(self) -> int:
        return len(self._known)

    async def stream(self, request: GenerateRequest, deadline: Deadline, start: Start) -> Events:
        """The answer to `request`, computed by `start` unless its key is known."""
        key = (request.context.tenant, request.idempotency_key)
        recording = self._join(key, request, start)
        recording.readers += 1
        try:
            async with aclosing(recording.read(deadline)) as events:
                async for event in events:
                    yield _addressed(event, request.request_id)
        finally:
            recording.readers -= 1
            await self._leave(key, recording)

    def _join(self, key: Key, request: GenerateRequest, start: Start) -> _Recording:
        self._expire()
        asked = fingerprint(request)
        known = self._known.get(key)
        if known is None:
            self._make_room()
            known = self._known[key] = _Recording(asked, start)
        elif known.asked != asked:
            raise Conflict(
                f"idempotency key {key[1]!r} was used for another request; use a new key for every new request"
            )
        return known

    async def _leave(self, key: Key, recording: _Recording) -> None:
        if recording.answered:
            if recording.kept_until is None:
                recording.kept_until = self._now() + self._ttl_s
            if not recording.readers:
                recording.events = recording.replay()
            return
        if recording.readers and not recording.task.done():
            return
        if self._known.get(key) is recording:
            del self._known[key]
        recording.task.cancel()
        await asyncio.gather(recording.task, return_exceptions=True)

    def _expire(self) -> None:
        now = self._now()
        old = [key for key, value in self._known.items() if value.kept_until is not None and value.kept_until <= now]
        for key in old:
            del self._known[key]

    def _make_room(self) -> None:
        if len(self._known) < self._entries:
            return
        finished = (key for key, value in self._known.items() if value.kept_until is not None)
        oldest = min(finished, key=lambda key: self._known[key].kept_until or 0.0, default=None)
        if oldest is None:
            raise Overloaded(f"{self._entries} requests with an idempotency key are running; try again later")
        del self._known[oldest]


def _addressed(event: GenerateEvent, request_id: str) -> GenerateEvent:
    """The event as the present caller's: a replay carries the caller's request id, not the first one's."""
    return replace(event, request_id=request_id) if isinstance(event, Committed | Final) else event
