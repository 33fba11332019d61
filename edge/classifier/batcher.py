"""Dynamic batching of texts: one thread that runs what waits, in batches of about one length.

Invariants: at most `max_queue` texts wait beside the batch that runs, a text past that is refused at once. A
text that comes while nothing runs is run at once, alone; those that come meanwhile share the next batches, each of
which has the text whose turn it is: by priority, value and age, as for decoders (edge.engine.waiting), so that nobody
waits for ever. A text that cannot expect its turn before its deadline is refused at once. Before every batch
deadlines are looked at and callers that left are forgotten. Every text is answered exactly once, by the weights it was
tokenized for, or by those of the same release that took their place. A text that fails does so alone: its batch is
run again text by text. When the model itself broke, every text fails as Unavailable and `broken` is told once: the
process is to be replaced. `retired` is told when a model was let go.

Must not know: gRPC, tokenizers, releases, labels.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
import threading
import time
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field

import numpy as np

from edge.classifier.job import Labelled, Served, Waiting, deliver
from edge.classifier.pick import Bounds, pick
from runtime.ort.classify import Encoded, Rows
from runtime.ort.steps import ModelBroken
from wire.deadline import Deadline
from wire.errors import DeadlineExceeded, InvalidRequest, Overloaded, Unavailable, WeirError

_log = logging.getLogger("weir.edge.classifier")

_IDLE_WAIT_S = 1.0
_NEWEST = 0.1  # its weight in the seconds per token
_PROBE = Encoded((0, 1, 2))


@dataclass(frozen=True, slots=True)
class BatcherSettings:
    """`linger_s`: for how long a text waits for company while nothing runs."""

    bounds: Bounds = field(default_factory=Bounds)
    max_queue: int = 64
    linger_s: float = 0.0


class TextBatcher:
    """Runs texts on the models they were tokenized for. Made and used in the event loop's thread."""

    def __init__(
        self,
        served: Served,
        settings: BatcherSettings,
        broken: Callable[[str], None],
        retired: Callable[[], None] = lambda: None,
    ) -> None:
        """`broken` and `retired` are called in the event loop."""
        self._settings, self._broken, self._retired = settings, broken, retired
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        # Shared by both threads, under the condition's lock.
        self._waiting: list[Waiting] = []  # by rank
        self._current = served
        self._others = False  # whether models before the current one may still have texts
        self._running: list[Waiting] = []
        self._closed: WeirError | None = None
        # The thread's own.
        self._batches = 0
        self._token_s = 0.0
        self._thread = threading.Thread(target=self._run, name="classify", daemon=True)
        self._thread.start()

    @property
    def active(self) -> int:
        """Texts in the batch that runs."""
        return len(self._running)

    @property
    def queued(self) -> int:
        return len(self._waiting)

    @property
    def decode_steps(self) -> int:
        """Batches run since the start."""
        return self._batches

    @property
    def left_s(self) -> float:
        """Seconds until what is here has been labelled."""
        with self._changed:
            tokens = sum(len(entry.row) for entry in (*self._waiting, *self._running))
        return tokens * self._token_s

    @property
    def closed(self) -> bool:
        """No text is taken any more: stopped, or broken."""
        return self._closed is not None

    def submit(
        self, served: Served, row: Encoded, deadline: Deadline, priority: int = 0, value: float | None = None
    ) -> asyncio.Future[Labelled]:
        """Queues a text.

        Raises Overloaded when the queue is full or longer than the deadline, Unavailable when closed.
        """
        entry = Waiting(served, row, deadline, self._loop.create_future(), priority, value)
        with self._changed:
            if self._closed is not None:
                raise copy(self._closed)  # raised in its caller's task: everybody gets one of his own
            # A text that will be run at once does not wait.
            if len(self._waiting) - (0 if self._running else 1) >= self._settings.max_queue:
                raise Overloaded(f"{len(self._waiting)} texts wait, which is the most; try again later")
            expected, left = self._turn_s(entry), deadline.remaining_s()
            if 0 < left < expected:
                raise Overloaded(
                    f"its turn is expected in {expected:.1f} s and its deadline is in {left:.1f} s; try again later"
                )
            bisect.insort(self._waiting, entry, key=_rank)
            self._changed.notify()
        return entry.answer

    def _turn_s(self, entry: Waiting) -> float:
        """Seconds until its batch begins, at most: what runs and what goes first, at the pace of late."""
        ahead = [other for other in self._waiting if other.rank <= entry.rank and not other.answer.cancelled()]
        return sum(len(other.row) for other in (*self._running, *ahead)) * self._token_s

    def switch(self, served: Served) -> None:
        """New texts run on `served`, and those that wait where it is the same release."""
        with self._changed:
            self._current, self._others = served, True
            self._changed.notify()

    def close(self, wait_s: float = 5.0) -> None:
        """Fails what still waits or runs as Unavailable and ends the thread."""
        with self._changed:
            self._closed = self._closed or Unavailable("the engine is stopping; try again later")
            self._changed.notify()
        self._thread.join(wait_s)

    # --- the thread

    def _run(self) -> None:
        error: WeirError = Unavailable("the engine is stopping; try again later")
        try:
            while (batch := self._next()) is not None:
                self._label(batch)
                del batch  # a model that is let go must not live on in this frame
        except Exception as fault:  # noqa: BLE001 - the thread's boundary: whatever it was, the model's state is unknown
            _log.exception("the model broke; this process will be replaced")
            error = Unavailable("the engine broke while it answered and is being restarted; try again")
            self._tell(self._broken, f"{type(fault).__name__}: {fault}")
        finally:
            self._fail_everything(error)

    def _next(self) -> list[Waiting] | None:
        """The next batch; None when closed."""
        with self._changed:
            self._running = []
            while True:
                if self._closed is not None:
                    return None
                self._forget_departed()
                if self._waiting and not self._lingers():
                    break
                self._let_go()
                self._changed.wait(self._patience())
            self._running = self._taken()
            self._let_go()
            return self._running

    def _patience(self) -> float:
        if not self._waiting:
            return _IDLE_WAIT_S
        return max(self._oldest() + self._settings.linger_s - time.monotonic(), 0.0)

    def _lingers(self) -> bool:
        """Whether the first text still waits for company."""
        if not self._settings.linger_s or len(self._waiting) >= self._settings.bounds.rows:
            return False
        return time.monotonic() < self._oldest() + self._settings.linger_s

    def _oldest(self) -> float:
        """When the text came that has waited longest."""
        return min(entry.since for entry in self._waiting)

    def _taken(self) -> list[Waiting]:
        """Those nearest to the first in length, of those that run on the same model."""
        for entry in self._waiting:
            if entry.served.release == self._current.release:
                entry.served = self._current
        served = self._waiting[0].served
        same = [entry for entry in self._waiting if entry.served is served]
        chosen = {id(same[index]) for index in pick([len(entry.row) for entry in same], self._settings.bounds)}
        batch = [entry for entry in same if id(entry) in chosen]
        self._waiting = [entry for entry in self._waiting if id(entry) not in chosen]
        return batch

    def _forget_departed(self) -> None:
        kept = []
        for entry in self._waiting:
            if entry.deadline.expired:
                waited = time.monotonic() - entry.since
                self._post(entry, DeadlineExceeded(f"the deadline passed after {waited:.1f} s in the queue"))
            elif not entry.answer.cancelled():
                kept.append(entry)
        self._waiting = kept

    def _let_go(self) -> None:
        """Tells once that no text of a model before the current one is left."""
        if self._others and all(entry.served is self._current for entry in (*self._waiting, *self._running)):
            self._others = False
            self._tell(self._retired)

    def _label(self, batch: list[Waiting]) -> None:
        began = time.monotonic()
        served = batch[0].served
        found = self._logits(served, [entry.row for entry in batch])
        took = time.monotonic() - began
        self._batches += 1
        tokens = len(batch) * max(len(entry.row) for entry in batch)
        self._token_s += (took / max(tokens, 1) - self._token_s) * (_NEWEST if self._token_s else 1.0)
        with self._changed:
            self._running = []  # whoever has its answer finds nothing of it here any more
        for entry, logits in zip(batch, found, strict=True):
            if isinstance(logits, WeirError):
                self._post(entry, logits)
            elif not np.isfinite(logits).all():
                self._post(entry, WeirError("the model gave no numbers for this text; ask another tier for it"))
            else:
                values = tuple(map(float, logits))
                self._post(entry, Labelled(values, served, (began - entry.since) * 1e3, took * 1e3))

    def _logits(self, served: Served, rows: list[Encoded]) -> list[Rows | WeirError]:
        """Of every text. Where the batch fails, each is tried alone, and one that fails alone has itself to blame."""
        try:
            return list(served.labels.run(rows))
        except ModelBroken as fault:
            served.labels.run([_PROBE])  # raises when it is the model
            if len(rows) == 1:
                _log.warning("a text of %d tokens could not be labelled: %s", len(rows[0]), fault)
                return [InvalidRequest("the model cannot take this text; change it or ask another tier")]
        found: list[Rows | WeirError] = []
        for row in rows:
            found.extend(self._logits(served, [row]))
        return found

    def _post(self, entry: Waiting, outcome: Labelled | WeirError) -> None:
        self._tell(deliver, entry.answer, outcome)

    def _tell(self, call: Callable[..., object], *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *arguments)

    def _fail_everything(self, error: WeirError) -> None:
        with self._changed:
            self._closed = self._closed or error
            for entry in (*self._running, *self._waiting):
                self._post(entry, copy(error))  # raised in its caller's task: everybody gets one of his own
            self._waiting, self._running = [], []


def _rank(entry: Waiting) -> float:
    return entry.rank
