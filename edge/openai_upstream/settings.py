"""How an OpenAI-compatible upstream is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from edge.config import REMOTE_CAPABILITIES

LOGPROB_CAPABILITIES = ("logprobs", "top_logprobs")


@dataclass(frozen=True, slots=True)
class OpenAiSettings:
    """`url` is the base, as `https://host/v1`. `model` empty: the only one it lists, or one of our name.

    `capabilities` empty: all that the interface has words for, and an endpoint that serves less refuses.
    `logprobs` adds the log-probs of tokens.
    """

    url: str
    api_key: str = field(default="", repr=False)
    model: str = ""
    logprobs: bool = False
    capabilities: tuple[str, ...] = ()
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    connect_s: float = 5.0
    max_retry_wait_s: float = 10.0  # a longer retry-after is not waited for

    @property
    def serves(self) -> tuple[str, ...]:
        return (self.capabilities or REMOTE_CAPABILITIES) + (LOGPROB_CAPABILITIES if self.logprobs else ())
