"""Iteration-level batching: one thread that admits, decodes and ends requests between single steps.

Invariants: at most `slots` sequences hold rows, over all models together, and nobody is admitted beyond what they may
claim of KV memory (edge.engine.budget), prompts and answers at their longest; at most `max_queue` more wait, in the
order of edge.engine.waiting. Refused at once is what can never fit, what finds the queue full, and what cannot
expect its turn before its deadline. Waiting requests are looked at between steps as well, so a deadline or a
caller that left frees its place within one step. Events of a step cross to the event loop together, in one call.
When the model breaks, every request fails as Unavailable and `broken` is told once: the process is to be replaced.
`retired` is told when a model was let go.

What runs, and on which models, is in edge.engine.lanes; what the thread tells of itself in edge.engine.figures.
Must not know: gRPC, tokenizers, releases.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from copy import copy

from edge.engine.budget import Budget
from edge.engine.figures import Figures
from edge.engine.job import Job, Outbox, Served, Ticket
from edge.engine.lanes import Lanes
from edge.engine.running import Running
from edge.engine.waiting import WaitingList, rank
from runtime.ort.steps import ModelBroken
from wire.errors import DeadlineExceeded, Overloaded, Unavailable, WeirError, internal_fault

_log = logging.getLogger("weir.edge.engine")

# How often waiting callers are looked at while nothing decodes. Not on the path of a request.
_IDLE_WAIT_S = 1.0
_SHED_S = 5.0


class Batcher:
    """Runs jobs on the models they were tokenized for. Made and used in the event loop's thread."""

    def __init__(
        self,
        served: Served,
        slots: int,
        max_queue: int,
        broken: Callable[[str], None],
        retired: Callable[[], None] = lambda: None,
        *,
        kv_tokens: int | None = None,
        keep_answers: bool = False,
    ) -> None:
        """`broken` and `retired` are called in the event loop. `kv_tokens` None: whatever the rows hold."""
        self._slots, self._max_queue = slots, max_queue
        self._budget = self._budgeted(served, kv_tokens)
        self._broken, self._retired = broken, retired
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        # Shared by both threads, under the condition's lock.
        self._waiting: WaitingList[Running] = WaitingList()
        self._current = served
        self._active = 0
        self._closed: WeirError | None = None
        self._shed: threading.Event | None = None
        # The decode thread writes it, anybody may read.
        self.figures = Figures()
        # The decode thread's own.
        self._outbox = Outbox(self._loop)
        self._lanes = Lanes(self._outbox.post, keep_answers)
        self._entering: list[Running] = []  # no longer waiting, not yet in a lane
        self._shedding: threading.Event | None = None  # what was begun to be shed for
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
    def kv_tokens(self) -> int:
        """What may be claimed, in tokens of the model in force; so is what is."""
        return self._budget.tokens

    @property
    def kv_tokens_used(self) -> int:
        return self._budget.in_tokens(self.figures.claimed_bytes)

    def tokens_for(self, served: Served) -> int:
        """What may be claimed, in tokens of `served`."""
        return self._budget.tokens_for(served)

    @property
    def promised_bytes(self) -> int:
        """What requests may come to take beside what rows take."""
        return max(self._budget.bytes - self.figures.row_bytes, 0)

    @property
    def decode_steps(self) -> int:
        """Decode steps taken since the start."""
        return self.figures.decode_steps

    @property
    def left_s(self) -> float:
        """Seconds until what is here has ended, if every answer gets as long as it may: rarely too short."""
        with self._changed:
            waiting = sum(running.tokens_left for running in self._waiting)
        return self.figures.left_s(waiting / self._slots)

    @property
    def closed(self) -> bool:
        """No job is taken any more: stopped, or broken."""
        return self._closed is not None

    def submit(self, job: Job) -> Ticket:
        """Queues `job`.

        Raises ContextTooLong for what never fits, Overloaded for what does not while other weights are on their way
        out, and when the queue is full or longer than the job's deadline; Unavailable when closed.
        """
        if (refusal := self._budget.refusal(job)) is not None:
            raise refusal
        waiting = Running(Ticket(), job)
        order = rank(job.priority, job.value, waiting.submitted)
        with self._changed:
            if self._closed is not None:
                raise copy(self._closed)
            if self._active + len(self._waiting) >= self._slots + self._max_queue:
                raise Overloaded(
                    f"all {self._slots} slots are taken and {len(self._waiting)} requests wait, "
                    f"of at most {self._max_queue}; try again later"
                )
            ahead, left = self._waiting.ahead_of(order), job.deadline.remaining_s()
            expected = self.figures.wait_s(waiting, ahead, self._slots, self._budget.bytes)
            if 0 < left < expected:
                raise Overloaded(
                    f"a slot is expected to be free in about {expected:.1f} s, and this request has {left:.1f} s; "
                    "try again later or allow more time"
                )
            self._waiting.add(waiting, job.claim_bytes, order)
            self._changed.notify()
        return waiting.ticket

    def switch(self, served: Served, kv_tokens: int | None = None, later: int | None = None) -> None:
        """New requests run on `served`; running ones finish where they are.

        `kv_tokens` of it may be claimed, by all together, and perhaps `later` when the others have gone.
        """
        with self._changed:
            self._current = served
            self._keep_to(self._budgeted(served, kv_tokens, later))

    def allow(self, kv_tokens: int) -> None:
        """So many tokens of the model in force may be claimed from now on."""
        with self._changed:
            self._keep_to(self._budgeted(self._current, kv_tokens))

    def _budgeted(self, served: Served, tokens: int | None, later: int | None = None) -> Budget:
        rows = self._slots * served.steps.capacity
        return Budget(rows if tokens is None else tokens, served.kv_bytes_per_token, later)

    def _keep_to(self, budget: Budget) -> None:
        """Under the lock, in the event loop: who waits and has no chance any more is told at once."""
        self._budget = budget

        def stays(running: Running) -> bool:
            if (refusal := budget.refusal(running.job)) is not None:
                running.ticket.deliver(refusal)
            return refusal is None

        self._waiting.keep(stays)
        self._changed.notify()

    def shed(self) -> None:
        """Gives back what memory no running answer needs: kept prefixes, and rows beyond their sequences. Blocks."""
        with self._changed:
            if self._closed is not None:
                return
            self._shed = done = self._shed or threading.Event()
            self._changed.notify()
        done.wait(_SHED_S)

    def close(self, within_s: float = 5.0) -> None:
        """Fails what still waits or runs as Unavailable and ends the thread."""
        with self._changed:
            self._closed = self._closed or Unavailable("the engine is stopping; try again later")
            self._changed.notify()
        self._thread.join(within_s)

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
        began = time.monotonic()
        decoded = self._lanes.step()
        self.figures.stepped(self._lanes, decoded, time.monotonic() - began)
        self.figures.counted(self._lanes, self._current)
        self._outbox.flush()

    def _admit(self) -> bool:
        """Waits for work and gives it rows. False when closed."""
        self._retire()
        self._tidy()
        with self._changed:
            active = self._lanes.active
            if not (self._closed or len(self._waiting) or active or self._shed):
                self._active = 0
                self._changed.wait(_IDLE_WAIT_S)
            if self._closed is not None:
                return False
            self._forget_departed()
            claimed, budget = self._lanes.claimed_bytes, self._budget.bytes
            while active < self._slots and (running := self._waiting.take(budget - claimed)) is not None:
                self._entering.append(running)
                active += 1
                claimed += running.job.claim_bytes
            self._active = active
        # What takes long is done outside the lock: the event loop waits for it.
        if self._entering:
            while self._entering:
                self._enter(self._entering[0])
                del self._entering[0]
            self.figures.counted(self._lanes, self._current)
        return True

    def _enter(self, running: Running) -> None:
        try:
            self._lanes.admit(running, self._current)
        except ModelBroken:
            raise
        except Exception:  # noqa: BLE001 - one request's fault must not end the others
            _log.exception("a request could not be given a row")
            self._outbox.post(running.ticket, internal_fault())

    def _retire(self) -> None:
        """Lets go of models that are no longer in force and have nothing left to do."""
        if gone := self._lanes.retire(self._current):
            self.figures.weighed(self._lanes)  # first: who hears that the weights have gone asks
            del gone
            self._loop.call_soon_threadsafe(self._retired)

    def _tidy(self) -> None:
        """Gives memory back; all that no running answer needs where that was asked for."""
        if (shed := self._shed) is not None and shed is not self._shedding:
            self._shedding = shed
            self._lanes.forget_prefixes()
        done = self._lanes.give_back(self._budget.bytes, unclaimed=shed is not None)
        self.figures.weighed(self._lanes)
        if shed is not None and done:
            with self._changed:
                self._shed = self._shedding = None
            shed.set()

    def _forget_departed(self) -> None:
        def stays(running: Running) -> bool:
            if running.job.deadline.expired:
                waited = time.monotonic() - running.submitted
                late = DeadlineExceeded(f"the deadline passed after {waited:.1f} s in the queue")
                self._outbox.post(running.ticket, late)
                return False
            return not running.ticket.cancelled

        self._waiting.keep(stays)

    def _fail_everything(self, error: WeirError) -> None:
        begun = self._lanes.sequences
        self._entering = [running for running in self._entering if running not in begun]
        self._lanes.fail_all(error)
        for running in self._entering:
            self._outbox.post(running.ticket, copy(error))
        with self._changed:
            self._closed = self._closed or error
            for running in self._waiting:
                self._outbox.post(running.ticket, copy(error))
            self._waiting.clear()
            self._active = 0
        if not self._loop.is_closed():
            self._outbox.flush()
