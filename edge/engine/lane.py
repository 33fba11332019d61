"""One loaded model at work: sequences in rows, decoded together, prefilled chunk by chunk.

Invariants: decoding sequences hold rows 0 … n-1, so a step runs over the first n rows; sequences
still in prefill hold rows from n up. When one ends, the last decoding row moves into its place. A
sequence that fails on its own (logits that are no numbers, text that cannot be decoded) ends alone;
ModelBroken passes through, for then nothing here can be trusted.

Must not know: threads, event loops, queues. One thread calls it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from edge.engine.job import Ended, Event, Job, Served, Ticket, Token
from router.confidence import Signals
from runtime.ort.sampling import NotFinite, Sampler
from runtime.ort.steps import Logits, ModelBroken
from runtime.text import TextStream
from wire.errors import DeadlineExceeded, Unavailable, WeirError

_log = logging.getLogger("weir.edge.engine")

Post = Callable[[Ticket, Event], None]


class Running:
    """One answer in the making. `length` tokens of it lie in its row."""

    def __init__(self, ticket: Ticket, job: Job) -> None:
        self.ticket, self.job = ticket, job
        self.row = -1
        self.length = 0
        self.last_token = 0
        self.ended = False
        self.signals = Signals(prompt_tokens=len(job.prompt_ids))
        self.stream = TextStream(job.served.decode, job.stops)
        self.sampler = Sampler(job.sampling, job.served.steps.vocab_size)
        self.submitted = time.monotonic()
        self.admitted = self.first = self.submitted


class Lane:
    """The sequences of one Served. `post` takes the events they give."""

    def __init__(self, served: Served, post: Post) -> None:
        self.served = served
        self._post = post
        self._decoding: list[Running] = []
        self._prefilling: list[Running] = []  # the next in turn first

    @property
    def active(self) -> int:
        """Sequences that hold a row."""
        return len(self._decoding) + len(self._prefilling)

    @property
    def tokens_left(self) -> int:
        """The most tokens that one of its sequences may still get."""
        running = (*self._decoding, *self._prefilling)
        return max((sequence.job.max_tokens - sequence.signals.tokens for sequence in running), default=0)

    def admit(self, sequence: Running) -> None:
        """Gives a row to `sequence`. The caller sees to it that one is free."""
        taken = {other.row for other in self._prefilling}
        sequence.admitted = time.monotonic()
        sequence.row = next(row for row in range(len(self._decoding), self.served.steps.slots) if row not in taken)
        self._prefilling.append(sequence)

    def drop_departed(self) -> None:
        """Frees the rows of cancelled sequences and of those past their deadline."""
        for sequence in (*self._decoding, *self._prefilling):
            if sequence.ticket.cancelled:
                sequence.ended = True
            elif sequence.job.deadline.expired:
                produced, asked = sequence.signals.tokens, sequence.job.max_tokens
                self._fail(
                    sequence,
                    DeadlineExceeded(
                        f"the deadline passed after {produced} of at most {asked} tokens; allow more time"
                    ),
                )
        self._sweep()

    def step(self) -> bool:
        """One decode step over all decoding sequences, then one prefill chunk. Says whether it decoded."""
        decoded = bool(self._decoding)
        if decoded:
            logits = self.served.steps.decode(
                [sequence.last_token for sequence in self._decoding], [sequence.length for sequence in self._decoding]
            )
            for sequence, row in zip(self._decoding, logits, strict=True):
                sequence.length += 1
                self._advance(sequence, row)
            self._sweep()
        if self._prefilling:
            self._prefill(self._prefilling.pop(0))
            self._sweep()
        return decoded

    def fail_all(self, error: WeirError) -> None:
        """Ends every sequence with `error`."""
        for sequence in (*self._decoding, *self._prefilling):
            self._fail(sequence, error)
        self._decoding, self._prefilling = [], []

    def _prefill(self, sequence: Running) -> None:
        start = sequence.length
        chunk = sequence.job.prompt_ids[start : start + self.served.steps.prefill_chunk]
        logits = self.served.steps.prefill(sequence.row, chunk, start)
        sequence.length += len(chunk)
        if sequence.length < len(sequence.job.prompt_ids):
            self._prefilling.append(sequence)  # to the end: long prompts take turns with short ones
            return
        sequence.first = time.monotonic()
        self._advance(sequence, logits)
        if not sequence.ended:
            self._join(sequence)

    def _join(self, sequence: Running) -> None:
        row = len(self._decoding)
        if sequence.row != row:
            holder = next((other for other in self._prefilling if other.row == row), None)
            if holder is None:
                self.served.steps.move(sequence.row, row, sequence.length)
            else:
                self.served.steps.swap(sequence.row, row, max(sequence.length, holder.length))
                holder.row = sequence.row
            sequence.row = row
        self._decoding.append(sequence)

    def _sweep(self) -> None:
        """Takes ended sequences out and closes the holes they leave."""
        self._prefilling = [sequence for sequence in self._prefilling if not sequence.ended]
        for row in reversed(range(len(self._decoding))):
            if not self._decoding[row].ended:
                continue
            last = self._decoding.pop()
            if last.row != row:
                self.served.steps.move(last.row, row, last.length)
                last.row = row
                self._decoding[row] = last

    def _advance(self, sequence: Running, logits: Logits) -> None:
        try:
            self._take(sequence, logits)
        except NotFinite as error:
            self._fail(sequence, Unavailable(f"the model failed on this request: {error}"))
        except ModelBroken:
            raise
        except Exception:  # noqa: BLE001 - one request's fault must not end the others
            _log.exception("a request failed while it was decoded")
            self._fail(sequence, WeirError("an internal fault was logged on the server; the request was not answered"))

    def _take(self, sequence: Running, logits: Logits) -> None:
        choice = sequence.sampler.choose(logits)
        if choice.token in self.served.stop_ids:
            self._end(sequence, "stop")
            return
        sequence.last_token = choice.token
        sequence.signals = sequence.signals.then(choice.logprob, choice.entropy, choice.margin)
        piece = sequence.stream.push((choice.token,))
        self._post(sequence.ticket, Token(piece.text, choice.token, choice.logprob, sequence.signals))
        if piece.stopped:
            self._end(sequence, "stop")
        elif sequence.signals.tokens >= sequence.job.max_tokens or sequence.length >= self.served.steps.capacity:
            self._end(sequence, "length")

    def _end(self, sequence: Running, reason: str) -> None:
        rest = sequence.stream.finish()
        now = time.monotonic()
        sequence.ended = True
        ended = Ended(
            "stop" if rest.stopped else reason,
            rest.text,
            sequence.signals,
            self.served,
            queue_ms=(sequence.admitted - sequence.submitted) * 1e3,
            prefill_ms=(sequence.first - sequence.admitted) * 1e3,
            decode_ms=(now - sequence.first) * 1e3,
        )
        self._post(sequence.ticket, ended)

    def _fail(self, sequence: Running, error: WeirError) -> None:
        sequence.ended = True
        self._post(sequence.ticket, error)
