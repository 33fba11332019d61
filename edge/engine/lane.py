"""One loaded model at work: sequences in rows, decoded together, prefilled chunk by chunk.

Invariants: decoding sequences hold rows 0 … n-1, so a step runs over the first n rows; sequences
still in prefill, and those that are scored, hold rows from n up. When one ends, the last decoding row
moves into its place. A step that decodes takes only as much of prompts as its pace allows, in turn. Rows
take no more memory than what their sequences claim, once `trim` was called. A sequence that fails on its
own (a sampler that cannot be made, logits that are no numbers, text that cannot be decoded) ends alone;
ModelBroken passes through, for then nothing here can be trusted. Until it has ended, a sequence is one of
`sequences`, whatever raises meanwhile: `fail_all` tells every one.

Must not know: threads, event loops, queues. One thread calls it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from edge.engine.job import Event, Served, Ticket
from edge.engine.pace import Pace, cut
from edge.engine.prefix import PrefixCache, Trail, root
from edge.engine.running import Running
from runtime.ort.sampling import ConstraintFailed, NotFinite, Scratch
from runtime.ort.steps import Logits, ModelBroken
from wire.errors import CannotConstrain, DeadlineExceeded, Unavailable, WeirError

_log = logging.getLogger("weir.edge.engine")

Post = Callable[[Ticket, Event], None]


class Lane:
    """The sequences of one Served. `post` takes the events they give."""

    def __init__(self, served: Served, post: Post, pace: Pace | None = None, keep_answers: bool = False) -> None:
        """`keep_answers`: an answer's KV is kept as a prefix too, not only its prompt's."""
        self.served = served
        self.pace = pace or Pace()
        self.prefixes = PrefixCache(served.steps)
        self._post, self._keep_answers = post, keep_answers
        self._scratch = Scratch(served.steps.vocab_size)
        self._decoding: list[Running] = []
        self._prefilling: list[Running] = []  # the next in turn first
        self._touched = [0] * served.steps.slots  # positions of each row that take memory

    @property
    def active(self) -> int:
        """Sequences that hold a row."""
        return len(self._decoding) + len(self._prefilling)

    @property
    def sequences(self) -> tuple[Running, ...]:
        return (*self._decoding, *self._prefilling)

    @property
    def tokens_left(self) -> int:
        """The most tokens that one of its sequences may still get."""
        return max((sequence.tokens_left for sequence in self.sequences), default=0)

    @property
    def ends_in_s(self) -> list[float]:
        """When each of its sequences is expected to have ended, as far as is known."""
        return [
            self.pace.prompt_s(max(len(sequence.job.prompt_ids) - sequence.length, 0))
            + max(self.pace.answer_s(sequence.job.max_tokens) - sequence.signals.tokens * self.pace.step_s, 0.0)
            for sequence in self.sequences
        ]

    @property
    def claimed(self) -> int:
        """Tokens of KV that its sequences may come to."""
        return sum(sequence.job.claim for sequence in self.sequences)

    @property
    def held(self) -> int:
        """Positions that take memory, or may come to."""
        claims = self._claims()
        return sum(max(touched, claim) for touched, claim in zip(self._touched, claims, strict=True))

    def admit(self, sequence: Running) -> None:
        """Gives a row to `sequence`. The caller sees to it that one is free."""
        taken = {other.row for other in self._prefilling}
        served, job = self.served, sequence.job
        sequence.admitted = time.monotonic()
        sequence.row = next(row for row in range(len(self._decoding), served.steps.slots) if row not in taken)
        sequence.trail = Trail(root(job.tenant, served.release, str(served.precision), served.weight_digest))
        self._prefilling.append(sequence)
        self._guarded(sequence, partial(sequence.begin, served, self._scratch))

    def trim(self) -> None:
        """Returns the memory of positions that no sequence claims."""
        for row, claim in enumerate(self._claims()):
            if self._touched[row] > claim:
                self.served.steps.give_back(row, claim)
                self._touched[row] = claim

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
        decoded = bool(self._decoding)
        if decoded:
            self._decode()
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
        """Chunks of prompts in turn; beside decoding until the step's time is spent, else of one."""
        spent_s = 0.0
        for sequence in tuple(self._prefilling):
            if sequence.ended:
                continue
            began, taken = time.monotonic(), True

            def advance(sequence: Running = sequence, spent_s: float = spent_s) -> None:
                nonlocal taken
                taken = self._advance_prompt(sequence, beside=beside, spent_s=spent_s)

            # In the list meanwhile: whatever comes out of it, the sequence is one of those that are told.
            self._guarded(sequence, advance)
            spent_s += time.monotonic() - began
            if taken and not sequence.decoding:
                # To the end: long prompts take turns with short ones. One that found no room stays first.
                self._prefilling.remove(sequence)
                self._prefilling.append(sequence)
            if not taken or not beside:
                break

    def _decode(self) -> None:
        began = time.monotonic()
        logits = self.served.steps.decode(
            [sequence.last_token for sequence in self._decoding], [sequence.length for sequence in self._decoding]
        )
        for sequence, row in zip(self._decoding, logits, strict=True):
            self._grow(sequence, 1)
            self._guarded(sequence, partial(self._take, sequence, row))
        self._sweep()
        self.pace.decoded(time.monotonic() - began, beside=bool(self._prefilling))

    def _advance_prompt(self, sequence: Running, *, beside: bool, spent_s: float) -> bool:
        """Takes a chunk of a prompt, or of a continuation that is scored; False where the step has no time left."""
        steps, prompt = self.served.steps, sequence.job.prompt_ids
        if sequence.scoring is not None and sequence.length >= len(prompt):
            return self._score(sequence, beside, spent_s)
        # Two tokens at least are left to prefill: the last one gives the logits, and one alone is computed otherwise.
        before = sequence.length
        sequence.length = self.prefixes.take(sequence.trail, prompt, sequence.row, before, len(prompt) - 2)
        sequence.cached += sequence.length - before
        self._touch(sequence)
        start, most = sequence.length, steps.prefill_chunk
        wanted = self.pace.chunk(start, most, spent_s) if beside else most
        if not wanted:
            return sequence.length > before
        chunk = prompt[start : start + cut(len(prompt) - start, wanted)]
        began = time.monotonic()
        logits = steps.prefill(sequence.row, chunk, start)
        self.pace.prefilled(len(chunk), start, time.monotonic() - began, beside=beside)
        self._grow(sequence, len(chunk))
        self.prefixes.add(sequence.trail, prompt, sequence.row, sequence.length)
        if sequence.length == len(prompt):
            sequence.first = time.monotonic()
            self._prompted(sequence, logits)
        return True

    def _prompted(self, sequence: Running, logits: Logits) -> None:
        """The prompt is in its row; `logits` tell what follows."""
        if sequence.scoring is not None:
            sequence.scoring.prompted(logits)
            self._end_scoring(sequence)
            return
        self._take(sequence, logits)
        if not sequence.ended:
            self._join(sequence)

    def _score(self, sequence: Running, beside: bool, spent_s: float) -> bool:
        scoring, steps = sequence.scoring, self.served.steps
        assert scoring is not None
        wanted = self.pace.chunk(sequence.length, steps.score_chunk, spent_s) if beside else steps.score_chunk
        if not wanted:
            return False
        chunk, at = scoring.next_chunk(wanted)
        # Every continuation is written over the one before it, behind the prompt they share.
        start = len(sequence.job.prompt_ids) + at
        self._touched[sequence.row] = max(self._touched[sequence.row], start + len(chunk))
        began = time.monotonic()
        logits = steps.score(sequence.row, chunk, start)
        self.pace.prefilled(len(chunk), start, time.monotonic() - began, beside=beside)
        scoring.took(logits)
        self._end_scoring(sequence)
        return True

    def _end_scoring(self, sequence: Running) -> None:
        if sequence.scoring is not None and sequence.scoring.done:
            sequence.ended = True
            self._post(sequence.ticket, sequence.scored(time.monotonic()))

    def _join(self, sequence: Running) -> None:
        row = len(self._decoding)
        sequence.decoding = True
        if sequence.row != row:
            holder = next((other for other in self._prefilling if other.row == row), None)
            if holder is None:
                self.served.steps.move(sequence.row, row, sequence.length)
            else:
                length = max(sequence.length, holder.reach)
                self.served.steps.swap(sequence.row, row, length)
                self._touched[sequence.row] = max(self._touched[sequence.row], length)
                holder.row = sequence.row
            self._touched[row] = max(self._touched[row], sequence.length)
            sequence.row = row
        self._touch(sequence)
        self._prefilling.remove(sequence)
        self._decoding.append(sequence)
        self.pace.joined()

    def _sweep(self) -> None:
        """Takes ended sequences out and closes the holes they leave."""
        self._prefilling = [sequence for sequence in self._prefilling if not sequence.ended]
        for row in reversed(range(len(self._decoding))):
            if not self._decoding[row].ended:
                continue
            last = self._decoding[-1]
            if last.row != row:
                self.served.steps.move(last.row, row, last.length)
                last.row = row
                self._decoding[row] = last
                self._touch(last)
            self._decoding.pop()

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

    def _take(self, sequence: Running, logits: Logits) -> None:
        token, reason = sequence.take(logits)
        if token is not None:
            self._post(sequence.ticket, token)
        if reason is None and sequence.length >= self.served.steps.capacity:
            reason = "length"
        if reason is not None:
            self._end(sequence, reason)

    def _end(self, sequence: Running, reason: str) -> None:
        ended = sequence.end(reason, time.monotonic())
        self.pace.answered(sequence.signals.tokens, sequence.job.max_tokens)
        if self._keep_answers and sequence.length > len(sequence.job.prompt_ids):
            self.prefixes.add(sequence.trail, sequence.token_ids, sequence.row, sequence.length)
        self._post(sequence.ticket, ended)

    def _fail(self, sequence: Running, error: WeirError) -> None:
        sequence.ended = True
        self._post(sequence.ticket, error)

    def _grow(self, sequence: Running, tokens: int) -> None:
        sequence.length += tokens
        self._touch(sequence)

    def _touch(self, sequence: Running) -> None:
        self._touched[sequence.row] = max(self._touched[sequence.row], sequence.length)

    def _claims(self) -> list[int]:
        claims = [0] * self.served.steps.slots
        for sequence in self.sequences:
            claims[sequence.row] = sequence.job.claim
        return claims


def internal_fault() -> WeirError:
    """What a request is told that failed in a way nobody foresaw."""
    return WeirError("an internal fault was logged on the server; the request was not answered")
