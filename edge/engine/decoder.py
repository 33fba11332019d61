"""How a decoder's release comes to answer: opened, run by a Batcher, with the KV memory that one may claim.

Of what is free, the KV of kept prefixes is promised already (edge.engine.room); what others may claim is settled
anew when the weights change, and when those that were replaced have gone.

Must not know: requests, when weights change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from edge.engine.batcher import Batcher
from edge.engine.config import EngineConfig
from edge.engine.job import Served
from edge.engine.making import Making
from edge.engine.model import Model, Opener
from edge.engine.room import Memory, kv_tokens
from runtime.ort.steps import BLOCK_TOKENS
from wire.engine import EngineStatus


def decoder(config: EngineConfig, opener: Opener, look: Callable[[], Memory]) -> Making[Model, Batcher]:
    """`look` tells how much memory there is now."""
    fits = partial(_fits, config, look)
    return Making(
        partial(opener, config),
        partial(_begin, config, fits),
        partial(_switch, config, fits),
        _shed,
        lambda batcher: batcher.promised_bytes,
        lambda batcher, model: batcher.allow(fits(model.served, batcher.figures.taken_bytes)),
        _told,
    )


def _begin(
    config: EngineConfig,
    fits: Callable[[Served], int],
    model: Model,
    broken: Callable[[str], None],
    retired: Callable[[], None],
) -> Batcher:
    return Batcher(
        model.served,
        config.slots,
        config.max_queue,
        broken,
        retired,
        kv_tokens=fits(model.served),
        keep_answers=config.prefix_cache_answers,
    )


def _fits(config: EngineConfig, look: Callable[[], Memory], served: Served, taken: int = 0) -> int:
    """How many tokens' KV there may be; `taken` bytes are in memory, kept prefixes included."""
    steps, per_token = served.steps, served.kv_bytes_per_token
    promised = steps.prefix_blocks * BLOCK_TOKENS * per_token
    return kv_tokens(config.kv_tokens, config.slots * steps.capacity, per_token, look(), promised - taken)


def _switch(config: EngineConfig, fits: Callable[[Served, int], int], batcher: Batcher, model: Model) -> None:
    # Beside the old weights there is less room than later.
    later = config.slots * model.served.steps.capacity
    if config.kv_tokens is not None:
        later = min(later, config.kv_tokens)
    batcher.switch(model.served, fits(model.served, batcher.figures.taken_bytes), later)


def _shed(batcher: Batcher) -> None:
    if batcher.figures.prefix_tokens:
        batcher.shed()


def _told(batcher: Batcher, status: EngineStatus) -> EngineStatus:
    return replace(
        status,
        kv_tokens=batcher.kv_tokens,
        kv_tokens_used=batcher.kv_tokens_used,
        prefix_tokens=batcher.figures.prefix_tokens,
        prefix_hit_tokens=batcher.figures.prefix_hit_tokens,
    )
