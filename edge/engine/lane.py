"""One loaded model at work: sequences in rows, decoded together, prefilled chunk by chunk.

Invariants: a step that decodes takes only as much of prompts as its pace allows, in turn; what it copies, to close up
rows (edge.engine.rows) or from kept prefixes, ends after a share of what a decode step takes, but for one piece, and
counts as time that prompts took. A prompt that was passed over for it goes first in the next step. A sequence that
fails on its own (a sampler that cannot be made, logits that are no numbers, text that cannot be decoded) ends alone;
ModelBroken passes through, for then nothing here can be trusted. Until it has ended, a sequence is one of
`sequences`, whatever raises meanwhile: `fail_all` tells every one.

Must not know: threads, event loops, queues. One thread calls it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from copy import copy
from functools import partial

from edge.engine.job import Event, Served, Ticket
from edge.engine.pace import Pace, cut
from edge.engine.prefix import PrefixCache, Trail, root
from edge.engine.rows import Rows
from edge.engine.running import Running
from edge.engine.waiting import Turn
from runtime.ort.sampling import ConstraintFailed, NotFinite, Scratch
from runtime.ort.steps import BLOCK_TOKENS, Logits, ModelBroken
from wire.errors import CannotConstrain, DeadlineExceeded, Unavailable, WeirError, internal_fault

_log = logging.getLogger("weir.edge.engine")

Post = Callable[[Ticket, Event], None]
# Of what a decode step takes, what it may copy for beside: as much as prompts may take at least.
_COPY_SHARE = 0.5
# Streams get longer while a prompt waits for them to end, and so do their steps.
_GROWTH = 1.5


class Lane:
    """The sequences of one Served. `post` takes the events they give."""

    def __init__(
        self,
        served: Served,
        post: Post,
        pace: Pace | None = None,
        keep_answers: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`keep_answers`: an answer's KV is kept as a prefix too, not only its prompt's. `clock`: for costs."""
        self.served = served
        self.pace = pace or Pace()
        self.prefixes = PrefixCache(served.steps)
        self.rows = Rows(served.steps)
        self._post, self._keep_answers, self._clock = post, keep_answers, clock
        self._scratch = Scratch(served.steps.vocab_size)
        self._decoding: list[Running] = []
        self._prefilling: list[Running] = []  # the next in turn first
        self._spent_s = 0.0  # of the step that runs, for prompts and copies; 0 until there was one
        self._passed_over = False  # prompts, in the step before, for what it copied

    @property
    def active(self) -> int:
        """Sequences that hold a row."""
        return len(self._decoding) + len(self._prefilling)

    @property
    def decoding(self) -> bool:
        return bool(self._decoding)

    @property
    def sequences(self) -> tuple[Running, ...]:
        return (*self._decoding, *self._prefilling)

    @property
    def tokens_left(self) -> int:
        """The most tokens that one of its sequences may still get."""
        return max((sequence.tokens_left for sequence in self.sequences), default=0)

    @property
    def turns(self) -> list[Turn]:
        """How long each of its sequences is expected to hold a row yet."""
        return [sequence.turn(self.pace) for sequence in self.sequences]

    @property
    def claimed(self) -> int:
        """Tokens of KV that its sequences may come to."""
        return sum(sequence.job.claim for sequence in self.sequences)

    @property
    def claimed_bytes(self) -> int:
        return self.claimed * self.served.kv_bytes_per_token

    def admit(self, sequence: Running) -> None:
        """Gives a row to `sequence`. The caller sees to it that one is free."""
        served, job = self.served, sequence.job
        sequence.admitted = time.monotonic()
        self.rows.give(sequence)
        sequence.trail = Trail(root(job.tenant, served.release, str(served.precision), served.weight_digest))
        self._prefilling.append(sequence)
        self._guarded(sequence, partial(sequence.begin, served, self._scratch))

    def drop_departed(self) -> None:
        """Frees the rows of cancelled sequences and of those past their deadline."""
        for sequence in self.sequences:
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
        """One decode step over all decoding sequences, then as much prefill as fits. Says whether it decoded."""
        decoded, self._spent_s = bool(self._decoding), 0.0
        if decoded:
            self._decode()
            began = self._clock()
            until = began + _COPY_SHARE * self.pace.step_s
            if self.rows.close_up(lambda: self._clock() < until) and not self._passed_over:
                self._spent_s = self._clock() - began
        self._prefill(beside=decoded)
        self._sweep()
        return decoded

    def fail_all(self, error: WeirError) -> None:
        """Ends every sequence with `error`."""
        for sequence in self.sequences:
            if not sequence.ended:
                self._fail(sequence, error)
        self._decoding, self._prefilling = [], []

    def _prefill(self, *, beside: bool) -> None:
        """Chunks of prompts in turn; beside decoding until the step's time is spent, else of one.

        One that gives way to the streams is passed by: what it waits for is no reason for others to wait.
        """
        any_taken = False
        for sequence in tuple(self._prefilling):
            taken, spent_s, began = True, self._spent_s, self._clock()

            def advance(sequence: Running = sequence) -> None:
                nonlocal taken
                taken = self._advance_prompt(sequence, beside)

            # In the list meanwhile: whatever comes out of it, the sequence is one of those that are told.
            self._guarded(sequence, advance)
            if not taken and spent_s == 0.0:
                self._spent_s = 0.0
                continue
            self._spent_s = spent_s + self._clock() - began
            any_taken |= taken
            if taken and not sequence.decoding:
                # To the end: long prompts take turns with short ones. One that found no room stays first.
                self._prefilling.remove(sequence)
                self._prefilling.append(sequence)
            if not taken or not beside:
                break
        self._passed_over = beside and bool(self._prefilling) and not any_taken

    def _decode(self) -> None:
        began = self._clock()
        for sequence, logits, probabilities in self.rows.decode():
            self._guarded(sequence, partial(self._decoded, sequence, logits, probabilities))
        self._sweep()
        self.pace.decoded(self._clock() - began, beside=bool(self._prefilling))

    def _decoded(self, sequence: Running, logits: Logits, probabilities: Logits | None) -> None:
        self._grow(sequence, 1)
        if self._keep_answers and sequence.length % BLOCK_TOKENS == 0:  # block by block: never many in one step
            self.prefixes.add(sequence.trail, sequence.token_ids, sequence.row, sequence.length)
        self._take(sequence, logits, probabilities)

    def _wanted(self, sequence: Running, most: int, beside: bool) -> int:
        """Tokens that its next chunk may have."""
        if not beside:
            return most
        wanted, floor = self.pace.chunk(sequence.length, most, self._spent_s), min(self.pace.floor, most)
        if wanted >= floor or self._spent_s > 0.0 or self._gives_way(sequence):
            return wanted
        return floor  # whatever it does to the streams

    def _gives_way(self, sequence: Running) -> bool:
        """Whether it may wait for the streams beside it to end."""
        left, pace = sequence.pass_tokens_left, self.pace
        if sequence.length + left <= self.served.steps.prefill_chunk:
            # Nowhere in so short a prompt is a pass dearer than at its beginning: that is this box, and soon over.
            return False
        return sequence.giving_way.lasts(
            self._clock(),
            sequence.job.deadline.remaining_s(),
            creep_s=pace.creep_s(left, sequence.length + left),
            alone_s=pace.prompt_s(sequence.length + left),
            streams_s=_GROWTH * pace.step_s * max((other.tokens_left for other in self._decoding), default=0),
        )

    def _advance_prompt(self, sequence: Running, beside: bool) -> bool:
        """Takes a chunk of a prompt, or of a continuation that is scored; False where the step has no time left."""
        steps, prompt = self.served.steps, sequence.job.prompt_ids
        if sequence.ended:
            return True
        if sequence.scoring is not None and sequence.length >= len(prompt):
            return self._score(sequence, beside)
        if (copied := self._copy_prefix(sequence, beside)) and sequence.trail.more:
            return True
        start = sequence.length
        wanted = 0 if sequence.trail.more else self._wanted(sequence, steps.prefill_chunk, beside)
        if not wanted:
            return copied
        chunk, started = prompt[start : start + cut(len(prompt) - start, wanted)], self._clock()
        logits = steps.prefill(sequence.row, chunk, start)
        self.pace.prefilled(len(chunk), start, self._clock() - started, beside=beside)
        self._grow(sequence, len(chunk))
        self.prefixes.add(sequence.trail, prompt, sequence.row, sequence.length)
        if sequence.length == len(prompt):
            sequence.first = time.monotonic()
            self._prompted(sequence, logits)
        return True

    def _copy_prefix(self, sequence: Running, beside: bool) -> bool:
        """Copies what is kept of its prompt while there is time; whether it copied."""
        prompt, before, began = sequence.job.prompt_ids, sequence.length, self._clock()
        until = began + _COPY_SHARE * self.pace.step_s - self._spent_s if beside else math.inf
        # Two tokens at least are left to prefill: the last one gives the logits, and one alone is computed otherwise.
        sequence.length = self.prefixes.take(
            sequence.trail, prompt, sequence.row, before, len(prompt) - 2, go_on=lambda: self._clock() < until
        )
        sequence.cached += sequence.length - before
        self.rows.touch(sequence.row, sequence.length)
        if sequence.length == before:
            return False
        self._spent_s += self._clock() - began
        return True

    def _prompted(self, sequence: Running, logits: Logits) -> None:
        """The prompt is in its row; `logits` tell what follows."""
        if sequence.scoring is not None:
            sequence.scoring.prompted(logits)
            self._end_scoring(sequence)
            return
        told = self.served.steps.probabilities
        self._take(sequence, logits, None if told is None else told[0])
        if not sequence.ended:
            self._join(sequence)

    def _score(self, sequence: Running, beside: bool) -> bool:
        scoring, steps = sequence.scoring, self.served.steps
        assert scoring is not None
        wanted = self._wanted(sequence, steps.score_chunk, beside)
        if not wanted:
            return False
        chunk, at = scoring.next_chunk(wanted)
        # Every continuation is written over the one before it, behind the prompt they share.
        start, started = len(sequence.job.prompt_ids) + at, self._clock()
        self.rows.touch(sequence.row, start + len(chunk))
        logits = steps.score(sequence.row, chunk, start)
        self.pace.prefilled(len(chunk), start, self._clock() - started, beside=beside)
        scoring.took(logits)
        self._end_scoring(sequence)
        return True

    def _end_scoring(self, sequence: Running) -> None:
        if sequence.scoring is not None and sequence.scoring.done:
            sequence.ended = True
            self._post(sequence.ticket, sequence.scored(time.monotonic()))

    def _join(self, sequence: Running) -> None:
        sequence.decoding = True
        self._prefilling.remove(sequence)
        self._decoding.append(sequence)
        self.pace.joined()

    def _sweep(self) -> None:
        """Takes ended sequences out of their rows."""
        for sequence in self.sequences:
            if sequence.ended:
                self.rows.let_go(sequence)
        self._decoding = [sequence for sequence in self._decoding if not sequence.ended]
        self._prefilling = [sequence for sequence in self._prefilling if not sequence.ended]

    def _guarded(self, sequence: Running, work: Callable[[], None]) -> None:
        try:
            work()
        except ConstraintFailed as error:
            # No fault of the engine: it must not count as one, or a schema could bring a node down for everybody.
            self._fail(sequence, CannotConstrain(str(error)))
        except NotFinite as error:
            self._fail(sequence, Unavailable(f"the model failed on this request: {error}"))
        except ModelBroken:
            raise
        except Exception:  # noqa: BLE001 - one request's fault must not end the others
            _log.exception("a request failed while it was prefilled or decoded")
            self._fail(sequence, internal_fault())

    def _take(self, sequence: Running, logits: Logits, probabilities: Logits | None) -> None:
        token, reason = sequence.take(logits, probabilities)
        if token is not None:
            self._post(sequence.ticket, token)
        if reason is None and sequence.length >= self.served.steps.capacity:
            reason = "length"
        if reason is not None:
            self._end(sequence, reason)

    def _end(self, sequence: Running, reason: str) -> None:
        ended = sequence.end(reason, time.monotonic())
        self.pace.answered(sequence.signals.tokens, sequence.job.max_tokens)
        self._post(sequence.ticket, ended)

    def _fail(self, sequence: Running, error: WeirError) -> None:
        sequence.ended = True
        self._post(sequence.ticket, copy(error))  # raised in its caller's task: everybody gets one of his own

    def _grow(self, sequence: Running, tokens: int) -> None:
        sequence.length += tokens
        self.rows.touch(sequence.row, sequence.length)
