"""Iteration-level batching: one thread that admits, decodes and ends requests between single steps.

Invariants: at most `slots` sequences hold rows, over all models together, and at most `max_queue`
more wait; a request past either is refused at once. Waiting requests are looked at between steps as
well, so a deadline or a caller that left frees its place within one step. Events of a step cross to
the event loop together, in one call. When the model breaks, every request fails as Unavailable and
`broken` is told once: the process is to be replaced. `retired` is told when a model was let go.

Must not know: gRPC, tokenizers, releases.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from edge.engine.job import Event, Job, Served, Ticket
from edge.engine.lane import Lane, Running
from wire.errors import DeadlineExceeded, Overloaded, Unavailable, WeirError

_log = logging.getLogger("weir.edge.engine")

# How often waiting callers are looked at while nothing decodes. Not on the path of a request.
_IDLE_WAIT_S = 1.0
_STEP_WEIGHT = 0.1  # of the newest step in what a step takes


class Batcher:
    """Runs jobs on the models they were tokenized for. Made and used in the event loop's thread."""

    def __init__(
        self,
        served: Served,
        slots: int,
        max_queue: int,
        broken: Callable[[str], None],
        retired: Callable[[], None] = lambda: None,
    ) -> None:
        """`broken` and `retired` are called in the event loop."""
        self._slots, self._max_queue = slots, max_queue
        self._broken, self._retired = broken, retired
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        # Shared by both threads, under the condition's lock.
        self._waiting: deque[Running] = deque()
        self._current = served
        self._active = 0
        self._closed: WeirError | None = None
        # The decode thread's own.
        self._lanes: list[Lane] = []
        self._posted: list[tuple[Ticket, Event]] = []
        self._decode_steps = 0
        self._step_s = 0.0  # of late
        self._tokens_left = 0
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)
        self._thread.start()

    @property
    def active(self) -> int:
        """Requests that hold a slot."""
        return self._active

    @property
    def queued(self) -> int:
        return len(self._waiting)

    @property
    def decode_steps(self) -> int:
        """Decode steps taken since the start."""
        return self._decode_steps

    @property
    def left_s(self) -> float:
        """Seconds until what is here has ended, if every answer gets as long as it may: rarely too short."""
        with self._changed:
            waiting = sum(running.job.max_tokens for running in self._waiting)
        return (self._tokens_left + waiting / self._slots) * self._step_s

    @property
    def closed(self) -> bool:
        """No job is taken any more: stopped, or broken."""
        return self._closed is not None

    def submit(self, job: Job) -> Ticket:
        """Queues `job`. Raises Overloaded when the queue is full, Unavailable when closed."""
        waiting = Running(Ticket(), job)
        with self._changed:
            if self._closed is not None:
                raise self._closed
            if self._active + len(self._waiting) >= self._slots + self._max_queue:
                raise Overloaded(
                    f"all {self._slots} slots are taken and {len(self._waiting)} requests wait, "
                    f"of at most {self._max_queue}; try again later"
                )
            self._waiting.append(waiting)
            self._changed.notify()
        return waiting.ticket

    def switch(self, served: Served) -> None:
        """New requests run on `served`; running ones finish where they are."""
        with self._changed:
            self._current = served
            self._changed.notify()

    def close(self, wait_s: float = 5.0) -> None:
        """Fails what still waits or runs as Unavailable and ends the thread."""
        with self._changed:
            self._closed = self._closed or Unavailable("the engine is stopping; try again later")
            self._changed.notify()
        self._thread.join(wait_s)

    def _run(self) -> None:
        error: WeirError = Unavailable("the engine is stopping; try again later")
        try:
            while self._admit():
                self._step()
        except Exception as fault:  # noqa: BLE001 - the thread's boundary: whatever it was, the model's state is unknown
            _log.exception("the model broke; this process will be replaced")
            error = Unavailable("the engine broke while it answered and is being restarted; try again")
            self._loop.call_soon_threadsafe(self._broken, f"{type(fault).__name__}: {fault}")
        finally:
            self._fail_everything(error)

    def _step(self) -> None:
        began, decoded = time.monotonic(), False
        for lane in self._lanes:
            lane.drop_departed()
            if lane.step():
                decoded = True
                self._decode_steps += 1
        if decoded:
            took = time.monotonic() - began
            self._step_s = took if not self._step_s else self._step_s + _STEP_WEIGHT * (took - self._step_s)
        self._tokens_left = max((lane.tokens_left for lane in self._lanes), default=0)
        self._flush()

    def _admit(self) -> bool:
        """Waits for work and gives it rows. False when closed."""
        with self._changed:
            while not (self._closed or self._waiting or any(lane.active for lane in self._lanes)):
                self._active = 0
                self._retire()
                self._changed.wait(_IDLE_WAIT_S)
            if self._closed is not None:
                return False
            self._retire()
            self._forget_departed()
            active = sum(lane.active for lane in self._lanes)
            while self._waiting and active < self._slots:
                running = self._waiting.popleft()
                self._lane(running.job.served).admit(running)
                active += 1
            self._active = active
        return True

    def _forget_departed(self) -> None:
        kept = []
        for running in self._waiting:
            if running.job.deadline.expired:
                waited = time.monotonic() - running.submitted
                self._post(running.ticket, DeadlineExceeded(f"the deadline passed after {waited:.1f} s in the queue"))
            elif not running.ticket.cancelled:
                kept.append(running)
        if len(kept) < len(self._waiting):
            self._waiting = deque(kept)

    def _lane(self, served: Served) -> Lane:
        # A request that waited while its release was put in force at another precision takes the new one.
        wanted = self._current if self._current.release == served.release else served
        for lane in self._lanes:
            if lane.served is wanted:
                return lane
        self._lanes.append(Lane(wanted, self._post))
        return self._lanes[-1]

    def _retire(self) -> None:
        """Lets go of models that are no longer in force and have nothing left to do."""
        kept = [lane for lane in self._lanes if lane.active or lane.served is self._current]
        if len(kept) < len(self._lanes):
            self._lanes = kept
            self._loop.call_soon_threadsafe(self._retired)

    def _post(self, ticket: Ticket, event: Event) -> None:
        self._posted.append((ticket, event))

    def _flush(self) -> None:
        if self._posted:
            posted, self._posted = self._posted, []
            self._loop.call_soon_threadsafe(_deliver, posted)

    def _fail_everything(self, error: WeirError) -> None:
        for lane in self._lanes:
            lane.fail_all(error)
        with self._changed:
            self._closed = self._closed or error
            for running in self._waiting:
                self._post(running.ticket, error)
            self._waiting.clear()
            self._active = 0
        if not self._loop.is_closed():
            self._flush()


def _deliver(posted: list[tuple[Ticket, Event]]) -> None:
    for ticket, event in posted:
        ticket.deliver(event)
