"""How much KV memory requests may claim together, whichever model they run on.

Counted in bytes: of two models that serve at once, one may take several times the memory of the other for a token.
Told in tokens of the model in force. While other weights are on their way out there may be less than later: what would
fit then is asked to come again, what never will is told so.

Must not know: who waits or runs, how much memory there is.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge.engine.job import Job, Served
from wire.errors import ContextTooLong, Overloaded, WeirError


@dataclass(frozen=True, slots=True)
class Budget:
    """`tokens` of a model that takes `per_token` bytes for each; `later` is what they may become, None: no more."""

    tokens: int
    per_token: int
    later: int | None = None

    @property
    def bytes(self) -> int:
        return self.tokens * self.per_token

    def tokens_for(self, served: Served) -> int:
        """How many tokens of `served` that is."""
        return self.bytes // served.kv_bytes_per_token

    def in_tokens(self, claimed_bytes: int) -> int:
        """What is claimed, in tokens of the model in force."""
        return -(-claimed_bytes // self.per_token)

    def refusal(self, job: Job) -> WeirError | None:
        """Why `job` cannot ever be admitted within this; None where it can."""
        if job.claim_bytes <= self.bytes:
            return None
        holds = self.tokens_for(job.served)
        text = f"the prompt and the longest answer have {job.claim} tokens together; this engine's memory holds {holds}"
        if self.later is not None and job.claim_bytes <= self.later * self.per_token:
            return Overloaded(f"{text} until the weights that were replaced have gone; try again later")
        return ContextTooLong(f"{text} (kv_tokens): shorten the prompt or ask for fewer tokens")
