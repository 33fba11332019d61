"""One answer in the making: what its row holds, what was chosen so far, what it gives next.

Must not know: rows of others, steps, threads.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from edge.engine.job import Ended, Job, Scored, Served, Ticket, Token
from edge.engine.prefix import Trail
from edge.engine.scoring import Scoring
from router.confidence import Signals
from runtime.ort.sampling import Sampler, Scratch
from runtime.ort.steps import Logits
from runtime.text import TextStream


class Running:
    """`length` tokens of it lie in its row. `begin` comes before anything else but waiting."""

    def __init__(self, ticket: Ticket, job: Job) -> None:
        self.ticket, self.job = ticket, job
        self.served = job.served
        self.row = -1
        self.length = 0
        self.cached = 0
        self.last_token = 0
        self.ended = self.decoding = False
        self.trail = Trail(b"")
        self.signals = Signals(prompt_tokens=len(job.prompt_ids))
        self.chosen: list[int] = []
        self.scoring: Scoring | None = None
        self.submitted = time.monotonic()
        self.admitted = self.first = self.submitted

    def begin(self, served: Served, scratch: Scratch) -> None:
        """It holds a row of `served` now."""
        job, self.served = self.job, served
        if job.continuations:
            self.scoring = Scoring(job.continuations, served.stop_ids)
            return
        self.stream = TextStream(job.served.decode, job.stops)
        self.sampler = Sampler(job.sampling, served.steps.vocab_size, job.prompt_ids, scratch)

    @property
    def tokens_left(self) -> int:
        """The most tokens it may still get."""
        return self.job.max_tokens - self.signals.tokens

    @property
    def token_ids(self) -> Sequence[int]:
        """The prompt and what was chosen."""
        return [*self.job.prompt_ids, *self.chosen]

    def take(self, logits: Logits) -> tuple[Token | None, str | None]:
        """The next token, None where the answer ends without one; and why it ends, None where it goes on.

        Raises NotFinite, ConstraintFailed, and whatever decoding its text raises.
        """
        job, constraint = self.job, self.job.constraint
        mask = None if constraint is None else constraint.mask()
        choice = self.sampler.choose(logits, mask, job.top_logprobs)
        whole = constraint is not None and constraint.accept(choice.token)
        if choice.token in self.served.stop_ids:
            return None, "stop"
        self.last_token = choice.token
        self.chosen.append(choice.token)
        self.signals = self.signals.then(choice.logprob, choice.entropy, choice.margin)
        piece = self.stream.push((choice.token,))
        token = Token(piece.text, choice.token, choice.logprob, self.signals, choice.top)
        if piece.stopped or whole:
            return token, "stop"
        return token, "length" if self.signals.tokens >= job.max_tokens else None

    def end(self, reason: str, now: float) -> Ended:
        """What ends its events."""
        rest = self.stream.finish()
        self.ended = True
        return Ended(
            "stop" if rest.stopped else reason,
            rest.text,
            self.signals,
            self.served,
            queue_ms=(self.admitted - self.submitted) * 1e3,
            prefill_ms=(self.first - self.admitted) * 1e3,
            decode_ms=(now - self.first) * 1e3,
            cached_tokens=self.cached,
        )

    def scored(self, now: float) -> Scored:
        """What ends its events, where its continuations were scored."""
        assert self.scoring is not None
        return Scored(
            self.scoring.logprobs,
            self.scoring.ends,
            self.served,
            queue_ms=(self.admitted - self.submitted) * 1e3,
            prefill_ms=(self.first - self.admitted) * 1e3,
            decode_ms=(now - self.first) * 1e3,
            cached_tokens=self.cached,
        )
