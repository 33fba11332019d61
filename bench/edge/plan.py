"""What `weir bench edge` is to measure, and how long. Must not know how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

# What an engine spends on a request, as its timings name it.
STAGES = ("tokenize", "queue", "prefill", "decode")
PARTS = ("decode", "prefill", "batch8", "signals", "bandwidth", "overhead", "streams", "gap", "prefix", "ttft")


@dataclass(frozen=True, slots=True)
class Plan:
    """Lengths are in tokens. `source` and `gguf` are the same model for the peers; None: the peer is left out."""

    release: Path
    source: str | None = None
    gguf: str | None = None
    peers_python: str | None = None  # one that has the peers; None: this one for genai, llama.cpp compiled once
    only: tuple[str, ...] = PARTS
    peers: tuple[str, ...] = ("genai", "llamacpp")
    rounds: int = 5
    threads: int = 1
    seed: int = 0
    prompt_tokens: int = 128
    steps: int = 48  # decode steps a round
    batches: tuple[int, ...] = (1, 2, 4, 8, 16)
    requests: int = 8  # a round, one client
    answer_tokens: int = 32  # of those
    streams: int = 16
    stream_tokens: int = 96
    long_prompt_tokens: int = 4000
    gap_streams: int = 8
    gap_tokens: int = 700
    prefix_tokens: int = 512
    load_s: float = 90.0
    load_per_minute: float = 60.0
    soak_s: float = 0.0
    soak_clients: int = 64

    @property
    def capacity(self) -> int:
        """Positions a sequence needs in the parts without a long prompt."""
        return max(
            self.prompt_tokens + self.steps + 2, self.prefix_tokens + 64, self.prompt_tokens + self.stream_tokens + 64
        )


# Does it work at all? Figures from so little say nothing.
QUICK: Mapping[str, Any] = MappingProxyType(
    {
        "rounds": 1,
        "prompt_tokens": 16,
        "steps": 3,
        "batches": (1, 2, 8),
        "requests": 2,
        "answer_tokens": 4,
        "streams": 3,
        "stream_tokens": 8,
        "long_prompt_tokens": 150,
        "gap_streams": 2,
        "gap_tokens": 40,
        "prefix_tokens": 64,
        "load_s": 1.0,
        "load_per_minute": 240.0,
        "soak_clients": 8,
    }
)
