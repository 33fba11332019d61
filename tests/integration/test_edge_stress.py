"""Many clients at once on a real engine process, half of whom leave whenever they like: nobody gets another's words.

At 8 bits an answer is the same to the last bit whoever runs beside it (docs/numerics.md), so every answer is compared
with what its request alone was given, the answers of those who left as far as they came.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.integration.engine_process import Engine, call, engine
from wire.errors import WeirError
from wire.messages import Context, Delta, Final, GenerateRequest, Message, Sampling

CLIENTS = 64
ROUNDS = 3  # of all clients
GROWTH_BYTES = 48 << 20
WITHIN_S = 60.0
SYSTEM = Message("system", "You answer for a shop that sends parcels. Where is my parcel? The answer is the city.")


@dataclass(frozen=True)
class Asked:
    request: GenerateRequest
    leaves_after: int | None  # deltas


def requests(seed: int) -> list[Asked]:
    chance, asked = random.Random(seed), []
    for number in range(CLIENTS):
        words = " ".join(
            chance.choices(("parcel", "order", "city", "water", "money", "night"), k=chance.randint(1, 30))
        )
        sampled = number % 3 == 0
        sampling = Sampling(
            max_tokens=chance.randint(1, 40), temperature=0.8 if sampled else 0.0, seed=number if sampled else None
        )
        context = Context(tenant=chance.choice(("a", "b")), priority=chance.randint(-1, 1))
        request = GenerateRequest(
            messages=(SYSTEM, Message("user", words)), sampling=sampling, context=context, return_logprobs=True
        )
        asked.append(Asked(request, chance.randint(0, 20) if number % 2 else None))
    return asked


async def tokens_of(e: Engine, asked: Asked) -> tuple[list[int], bool]:
    """The tokens that came, and whether the answer ended."""
    tokens: list[int] = []
    stream, came = e.inference.generate(asked.request, call(WITHIN_S)), 0
    async for event in stream:
        if isinstance(event, Final):
            assert event.usage.completion_tokens == len(tokens)
            return tokens, True
        if isinstance(event, Delta):
            tokens += event.token_ids
            came += 1
        if asked.leaves_after is not None and came >= asked.leaves_after:
            await stream.aclose()
            return tokens, False
    raise AssertionError("an answer must end with its Final")


async def until_empty(e: Engine) -> None:
    end = time.monotonic() + 10
    while (status := await e.status()).active or status.queued or status.kv_tokens_used:
        assert time.monotonic() < end, status
        await asyncio.sleep(0.02)


async def test_64_clients_half_of_whom_vanish_get_their_own_words_and_leave_nothing(tiny_release: Path) -> None:
    began = time.monotonic()
    settings = {"slots": 6, "max_queue": 128, "context_length": 256, "kv_tokens": 1024, "prefix_cache_bytes": 1 << 18}
    async with engine(tiny_release, **settings) as e:  # type: ignore[arg-type]
        whole = [Asked(asked.request, None) for asked in requests(0)]
        alone = [(await tokens_of(e, asked))[0] for asked in whole]
        memory, taken = psutil.Process(e.process.pid), []
        for number in range(ROUNDS):
            asked = requests(0)
            random.Random(number).shuffle(asked)
            of = {id(one.request): one for one in asked}
            assert len(of) == CLIENTS
            answers = await asyncio.gather(*(tokens_of(e, one) for one in asked), return_exceptions=True)
            references = {repr(one.request): tokens for one, tokens in zip(whole, alone, strict=True)}
            for one, answer in zip(asked, answers, strict=True):
                assert not isinstance(answer, WeirError), answer
                assert not isinstance(answer, BaseException), repr(answer)
                tokens, ended = answer
                reference = references[repr(one.request)]
                assert tokens == reference[: len(tokens)]
                assert len(tokens) == len(reference) or not ended
            await until_empty(e)
            taken.append(memory.memory_info().rss)
        assert max(taken) - taken[0] < GROWTH_BYTES
        assert (await e.status()).prefix_hit_tokens > 0
    assert time.monotonic() - began < WITHIN_S
