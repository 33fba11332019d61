"""Many clients for a long time, half of which vanish in the middle of an answer: is anything left, lost or mixed up?

Every client asks again and again; before each answer it is drawn whether it will hear it out or leave after a few
pieces. All that was heard is compared with what the same request gave when it was alone, at 8 bits, where that is
the same to the last bit on every CPU (docs/numerics.md). Afterwards slots and KV memory must be free again, and the
memory of both processes must not have grown.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal

import psutil

from bench.edge.asking import ask, chat, prompts_of
from bench.edge.node_parts import running
from bench.edge.plan import Plan
from bench.switching.node import Node
from runtime.tokenizer import Tokenizer
from wire.deadline import Deadline
from wire.engine import EngineStatus
from wire.errors import WeirError
from wire.messages import Delta, Final, GenerateRequest
from wire.service import Call, InferenceService

_REQUESTS = 24
_LENGTHS = (8, 48, 128)  # of prompts
_VANISHING = 0.5
_PRECISION = 8
_SAMPLE_S, _EMPTY_S, _DEADLINE_S = 1.0, 20.0, 120.0
_SAMPLES = 20  # of memory, at least: a short soak has a slope too
_SHOWN = 3

_End = Literal["heard", "vanished", "failed"]


@dataclass(slots=True)
class Tally:
    """What came of all requests. `wrong` are answers, or beginnings of them, that differ from the reference.

    `vanished` are those whose client left of its own accord; `failed` neither ended well nor were left.
    """

    heard: int = 0
    vanished: int = 0
    failed: int = 0
    wrong: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    differing: list[str] = field(default_factory=list)


async def soak(plan: Plan, tokenizer: Tokenizer) -> dict[str, Any]:
    """Runs for `plan.soak_s` seconds."""
    async with running(plan, precision=_PRECISION) as there:
        requests = _requests(plan, tokenizer)
        references = [(await ask(there.inference, request)).text for request in requests]
        tally, memory = Tally(), list[tuple[float, int]]()
        ends = time.monotonic() + plan.soak_s
        watch = asyncio.create_task(_watch(there, memory, min(_SAMPLE_S, plan.soak_s / _SAMPLES)))
        clients = (
            client(there.inference, requests, references, random.Random(plan.seed + number), ends, tally)
            for number in range(plan.soak_clients)
        )
        await asyncio.gather(*clients)
        status = await _emptied(there)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
    return {
        "soak": {
            "seconds": plan.soak_s,
            "clients": plan.soak_clients,
            "precision": _PRECISION,
            "heard_out": tally.heard,
            "vanished": tally.vanished,
            "failed": tally.failed,
            "wrong_or_mixed": tally.wrong,
            "examples": tally.differing,
            "errors": tally.errors,
            "left_active": status.active,
            "left_queued": status.queued,
            "left_kv_tokens": status.kv_tokens_used,
            "kept_prefix_tokens": status.prefix_tokens,
            "resident_mb": {"first": _mb(memory[:1]), "last": _mb(memory[-1:]), "most": _mb(memory)},
            "resident_mb_per_minute": slope_per_minute(memory[len(memory) // 2 :]),
        }
    }


def _requests(plan: Plan, tokenizer: Tokenizer) -> list[GenerateRequest]:
    """Different prompts, several lengths of answers."""
    lengths = [length for length in _LENGTHS if length <= plan.prompt_tokens] or [plan.prompt_tokens]
    found = []
    for number in range(_REQUESTS):
        (text,) = prompts_of(tokenizer, lengths[number % len(lengths)], 1, plan.seed + 3000 + number)
        found.append(chat(text, min(plan.stream_tokens, 12 + 4 * number)))
    return found


async def client(  # noqa: PLR0917 - what all clients share
    inference: InferenceService,
    requests: Sequence[GenerateRequest],
    references: Sequence[str],
    draw: random.Random,
    ends: float,
    tally: Tally,
) -> None:
    """Asks until `ends`, and leaves about half of its answers after a few pieces."""
    while time.monotonic() < ends:
        which = draw.randrange(len(requests))
        patience = draw.randrange(1, 12) if draw.random() < _VANISHING else None
        text = ""
        end: _End = "failed"
        try:
            call = Call(Deadline.after(_DEADLINE_S))
            async with aclosing(inference.generate(requests[which], call)) as events:
                pieces = 0
                async for event in events:
                    if isinstance(event, Delta):
                        text, pieces = text + event.text, pieces + 1
                    if isinstance(event, Final):
                        end = "heard"
                    elif patience is not None and pieces >= patience:
                        end = "vanished"
                        break
        except WeirError as error:
            end = "failed"
            name = type(error).__name__
            tally.errors[name] = tally.errors.get(name, 0) + 1
            await asyncio.sleep(draw.random())
        _count(tally, text, references[which], end)


def _count(tally: Tally, text: str, reference: str, end: _End) -> None:
    if end == "heard":
        tally.heard += 1
    elif end == "vanished":
        tally.vanished += 1
    else:
        tally.failed += 1
    if text != reference if end == "heard" else not reference.startswith(text):
        tally.wrong += 1
        if len(tally.differing) < _SHOWN:
            tally.differing.append(f"{text!r} is not {reference!r}")


async def _watch(there: Node, memory: list[tuple[float, int]], every_s: float) -> None:
    """Notes what the engine and the front take together."""
    processes = [psutil.Process(pid) for pid in (there.engine_pid, there.front_pid)]
    while True:
        memory.append((time.monotonic(), sum(int(process.memory_info().rss) for process in processes)))
        await asyncio.sleep(every_s)


async def _emptied(there: Node) -> EngineStatus:
    """The engine's status once nothing runs, or after a while."""
    ends = time.monotonic() + _EMPTY_S
    while True:
        status = await there.control.status(Call(Deadline.after(5.0)))
        if not (status.active or status.queued or status.kv_tokens_used) or time.monotonic() > ends:
            return status
        await asyncio.sleep(0.1)


def slope_per_minute(memory: Sequence[tuple[float, int]]) -> float | None:
    """Megabytes a minute by least squares; None of fewer than three samples."""
    if len(memory) < 3:
        return None
    middle = sum(at for at, _ in memory) / len(memory)
    mean = sum(taken for _, taken in memory) / len(memory)
    spread = sum((at - middle) ** 2 for at, _ in memory)
    return round(sum((at - middle) * (taken - mean) for at, taken in memory) / spread * 60 / 1e6, 3)


def _mb(memory: Sequence[tuple[float, int]]) -> float | None:
    return round(max(taken for _, taken in memory) / 1e6, 1) if memory else None
