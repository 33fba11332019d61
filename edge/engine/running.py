"""One answer in the making: what its row holds, what was chosen so far, what it gives next.

Must not know: rows of others, steps, threads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from edge.engine.giving_way import GivingWay
from edge.engine.job import Ended, Job, Scored, Served, Ticket, Token
from edge.engine.pace import Pace
from edge.engine.prefix import Trail
from edge.engine.scoring import Scoring
from edge.engine.waiting import Turn
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
        self.giving_way = GivingWay()
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
        """The most steps it may still be decoded, or scored, in."""
        return self._passes_left if self.job.continuations else self.job.max_tokens - self.signals.tokens

    @property
    def pass_tokens_left(self) -> int:
        """Tokens of its prompt, and of what is scored behind it, that are to be read yet."""
        return max(len(self.job.prompt_ids) - self.length, 0) + self._shown

    def turn(self, pace: Pace) -> Turn:
        """How long it is expected to hold a row yet, as far as is known; before it has one, how long it will."""
        job = self.job
        left_s = pace.prompt_s(max(len(job.prompt_ids) - self.length, 0))
        if job.continuations:
            # A pass a step, beside others; alone what a prompt of as many tokens takes.
            left_s += max(self._passes_left * pace.step_s, pace.prompt_s(self._shown))
        else:
            left_s += max(pace.answer_s(job.max_tokens) - self.signals.tokens * pace.step_s, 0.0)
        return Turn(left_s, job.claim_bytes)

    @property
    def _untold(self) -> tuple[tuple[int, ...], ...]:
        return self.job.continuations if self.scoring is None else self.scoring.left

    @property
    def _shown(self) -> int:
        return sum(len(ids) - 1 for ids in self._untold)

    @property
    def _passes_left(self) -> int:
        return sum(math.ceil((len(ids) - 1) / self.served.steps.score_chunk) for ids in self._untold)

    @property
    def token_ids(self) -> Sequence[int]:
        """The prompt and what was chosen."""
        return [*self.job.prompt_ids, *self.chosen]

    def take(self, logits: Logits, probabilities: Logits | None) -> tuple[Token | None, str | None]:
        """The next token, None where the answer ends without one; and why it ends, None where it goes on.

        `probabilities` are those of `logits`, where they are known, and are written into.
        Raises NotFinite, ConstraintFailed, and whatever decoding its text raises.
        """
        job, constraint = self.job, self.job.constraint
        mask = None if constraint is None else constraint.mask()
        choice = self.sampler.choose(logits, mask, job.top_logprobs, probabilities)
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
