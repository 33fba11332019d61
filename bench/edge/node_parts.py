"""The node as a client meets it, against the bare engine: overhead, a long prompt, a shared prefix, first tokens.

The bare engine is `edge.engine.service` in a process of its own, called without gRPC, HTTP or a cascade.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

from bench.edge.asking import AT_THE_END, Heard, HttpClient, ask, chat, prompts_of
from bench.edge.plan import STAGES, Plan
from bench.edge.rounds import medians
from bench.edge.side import Side
from bench.load import OpenLoop, Pace, quantile
from bench.switching.node import Node, node
from release.listing import read_manifest
from runtime.tokenizer import Tokenizer
from wire.messages import GenerateRequest

_SHORT_TOKENS = 32
_WARM_SHARE = 10  # of the streams' length is decoded before the long prompt comes
_CHOICES = 3  # candidates for each stream that must not end early
_QUEUE = 128

Told = Callable[[str], None]
_Asked = Callable[[str], Awaitable[tuple[float, float]]]  # milliseconds: all of it, and its engine's stages


async def measure(plan: Plan, tokenizer: Tokenizer, told: Told) -> dict[str, Any]:
    """Every part of the plan that needs a node. Raises NodeFailed, SideFailed, WeirError."""
    found: dict[str, Any] = {}
    if {"overhead", "streams"} & set(plan.only):
        with Side("own") as bare:
            bare.ask("engine_load", release=str(plan.release), settings=engine_settings(plan))
            async with running(plan) as there:
                if "overhead" in plan.only:
                    told("overhead of one client")
                    found |= await overhead(plan, there, bare, tokenizer)
                if "streams" in plan.only:
                    told(f"{plan.streams} streams")
                    found |= await streams(plan, there, bare, tokenizer)
    parts: Mapping[str, Callable[[Plan, Node, Tokenizer], Awaitable[dict[str, Any]]]] = {
        "gap": gap,
        "prefix": prefix,
        "ttft": first_tokens,
    }
    for name, part in parts.items():
        if name in plan.only:
            told(name)
            async with running(plan, long=name == "gap") as there:
                found |= await part(plan, there, tokenizer)
    return found


def engine_settings(plan: Plan) -> dict[str, Any]:
    """The bare engine's, equal to those the node's engine gets."""
    return {
        "precision": 4,
        "threads": plan.threads,
        "slots": plan.streams,
        "context_length": plan.capacity,
        "max_queue": _QUEUE,
    }


def running(plan: Plan, *, long: bool = False, precision: int = 4) -> AbstractAsyncContextManager[Node]:
    """A node over the release, with a context as long as the parts need."""
    context = plan.long_prompt_tokens + plan.gap_tokens + 64 if long else plan.capacity
    more = {
        "precision": precision,
        "context_length": context,
        "max_queue": _QUEUE,
        "max_output_tokens": max(plan.gap_tokens, plan.stream_tokens),
        "default_deadline_s": 300,
    }
    slots = plan.gap_streams + 1 if long else plan.streams
    return node(plan.release, slots=slots, threads=plan.threads, more=more)


async def overhead(plan: Plan, there: Node, bare: Side, tokenizer: Tokenizer) -> dict[str, Any]:
    """Milliseconds that a request costs in the node beyond what it costs in the bare engine, as one client sees them.

    Counted of either is what a request takes beyond the stages its own engine reports: the stages of two engines, or
    of one that was left alone for a moment, differ by more than is looked for, as `request_ms` shows. Who is asked
    first is drawn.
    """
    texts = prompts_of(tokenizer, _SHORT_TOKENS, plan.requests, plan.seed)
    model, draw = read_manifest(plan.release).name, random.Random(plan.seed)
    taken: dict[str, list[float]] = {"bare": [], "grpc": [], "http": []}
    beyond: dict[str, list[float]] = {name: [] for name in taken}
    async with HttpClient(there.http) as http:

        async def alone(text: str) -> tuple[float, float]:
            told = await asyncio.to_thread(bare.ask, "answers", prompts=[text], tokens=plan.answer_tokens)
            (one,) = told["answers"]
            return one["total_s"] * 1e3, sum(one["stages_ms"].values())

        async def over_grpc(text: str) -> tuple[float, float]:
            heard = await ask(there.inference, chat(text, plan.answer_tokens, AT_THE_END))
            return heard.total_s * 1e3, _of_the_engine(heard.final.timings_ms)

        async def over_http(text: str) -> tuple[float, float]:
            seconds, body = await http.chat(model, text, plan.answer_tokens)
            return seconds * 1e3, _of_the_engine(body["weir"]["timings_ms"])

        ways: list[tuple[str, _Asked]] = [("bare", alone), ("grpc", over_grpc), ("http", over_http)]
        for number in range(plan.rounds + 1):
            for text in texts:
                for name, way in draw.sample(ways, len(ways)):
                    total_ms, stages_ms = await way(text)
                    if number:
                        taken[name].append(total_ms)
                        beyond[name].append(total_ms - stages_ms)
    alone_ms = statistics.median(beyond["bare"])
    over = {name: [value - alone_ms for value in beyond[name]] for name in ("grpc", "http")}
    return {"overhead_ms": medians(over), "beyond_stages_ms": medians(beyond), "request_ms": medians(taken)}


def _of_the_engine(timings_ms: Mapping[str, float]) -> float:
    """What the engine says it spent on a request, stage by stage."""
    return sum(timings_ms[f"edge_{stage}"] for stage in STAGES)


async def streams(plan: Plan, there: Node, bare: Side, tokenizer: Tokenizer) -> dict[str, Any]:
    """The share of decode throughput that the node costs when all slots stream, every token seen as it comes."""
    texts = await _lasting(plan, there, tokenizer, plan.streams, plan.stream_tokens)
    model = read_manifest(plan.release).name
    figures: dict[str, list[float]] = {"bare": [], "node": [], "http": []}
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(HttpClient(there.http)) for _ in texts]
        for number in range(plan.rounds + 1):
            told = await asyncio.to_thread(bare.ask, "answers", prompts=texts, tokens=plan.stream_tokens)
            alone = sum((one["tokens"] - 1) / max(one["total_s"] - one["first_s"], 1e-9) for one in told["answers"])
            heard = await asyncio.gather(*(ask(there.inference, chat(text, plan.stream_tokens)) for text in texts))
            pairs = zip(clients, texts, strict=True)
            read = await asyncio.gather(*(http.stream(model, text, plan.stream_tokens) for http, text in pairs))
            if number:
                figures["bare"].append(alone)
                figures["node"].append(sum(one.decode_per_s for one in heard))
                figures["http"].append(sum(read))
    return {
        "overhead_16_streams": _lost(figures, "node"),
        "overhead_16_streams_http": _lost(figures, "http"),
        "streams_tokens_per_s": medians(figures, 1),
    }


def _lost(figures: Mapping[str, Sequence[float]], way: str) -> float:
    """The median over rounds of the share of the bare engine's throughput that is not there."""
    pairs = zip(figures[way], figures["bare"], strict=True)
    return round(statistics.median(1 - through / alone for through, alone in pairs), 4)


async def gap(plan: Plan, there: Node, tokenizer: Tokenizer) -> dict[str, Any]:
    """The worst gap of running streams while a long prompt is read, over their median gap before it came."""
    texts = await _lasting(plan, there, tokenizer, plan.gap_streams, plan.gap_tokens)
    ratios, worsts, mediums, waits = [], [], [], []
    for number in range(plan.rounds):
        (long_text,) = prompts_of(tokenizer, plan.long_prompt_tokens, 1, plan.seed + 1000 + number)
        warm = _Warm(plan.gap_streams, plan.gap_tokens // _WARM_SHARE)
        asked = [ask(there.inference, chat(text, plan.gap_tokens), warm.counter()) for text in texts]
        tasks = [asyncio.create_task(one) for one in asked]
        reached = asyncio.create_task(warm.reached.wait())
        await asyncio.wait({reached, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()
        came = time.perf_counter()
        long = await ask(there.inference, chat(long_text, 2))
        heard = [await task for task in tasks]
        before, worst = gaps_around(heard, came, came + long.first_s)
        ratios.append(worst / before)
        worsts.append(worst * 1e3)
        mediums.append(before * 1e3)
        waits.append(long.first_s)
    return {
        "gap_ratio_long_prompt": round(statistics.median(ratios), 3),
        "gap": {
            "worst_ms": round(statistics.median(worsts), 2),
            "median_before_ms": round(statistics.median(mediums), 2),
            "long_prompt_first_token_s": round(statistics.median(waits), 2),
        },
    }


def gaps_around(heard: Sequence[Heard], came: float, ended: float) -> tuple[float, float]:
    """(median gap before `came`, worst gap that reaches past it and begins before `ended`), in seconds."""
    before, during = [], []
    for one in heard:
        for earlier, later in zip(one.at, one.at[1:], strict=False):
            if later <= came:
                before.append(later - earlier)
            elif earlier < ended:
                during.append(later - earlier)
    if not before or not during:
        raise ValueError("the streams had ended before the long prompt came, or had not begun")
    return statistics.median(before), max(during)


async def prefix(plan: Plan, there: Node, tokenizer: Tokenizer) -> dict[str, Any]:
    """Time to the first token behind a long prefix: never seen before, over seen once."""
    cold, warm = [], []
    tails = prompts_of(tokenizer, 8, 2, plan.seed + 7)
    for number in range(plan.rounds + 1):
        (head,) = prompts_of(tokenizer, plan.prefix_tokens, 1, plan.seed + 2000 + number)
        first = await ask(there.inference, chat(f"{head} {tails[0]}", 2))
        second = await ask(there.inference, chat(f"{head} {tails[1]}", 2))
        if number:
            cold.append(first.first_s)
            warm.append(second.first_s)
    gains = [one / other for one, other in zip(cold, warm, strict=True)]
    times = {"cold": round(statistics.median(cold) * 1e3, 2), "warm": round(statistics.median(warm) * 1e3, 2)}
    return {"prefix_ttft_gain": round(statistics.median(gains), 2), "prefix_ttft_ms": times}


async def first_tokens(plan: Plan, there: Node, tokenizer: Tokenizer) -> dict[str, Any]:
    """Time to the first token of an open stream of requests, from when each was due."""
    texts = prompts_of(tokenizer, plan.prompt_tokens, 32, plan.seed + 3)

    def request(number: int) -> GenerateRequest:
        return chat(texts[number % len(texts)], plan.answer_tokens)

    load = OpenLoop(there.inference, request, Pace(plan.load_per_minute, plan.seed), deadline_s=60.0)
    async with load:
        await asyncio.sleep(plan.load_s)
    times = [one.committed_s * 1e3 for one in load.outcomes if one.committed_s is not None and not one.error]
    failed = sum(1 for one in load.outcomes if one.error)
    return {
        "ttft_under_load": {
            "requests": len(load.outcomes),
            "failed": failed,
            "per_minute": plan.load_per_minute,
            "p50_ms": round(quantile(times, 0.5), 1) if times else None,
            "p99_ms": round(quantile(times, 0.99), 1) if times else None,
        }
    }


async def _lasting(plan: Plan, there: Node, tokenizer: Tokenizer, count: int, tokens: int) -> list[str]:
    """Prompts whose answers do not end by themselves before `tokens`, as far as there are such."""
    texts = prompts_of(tokenizer, _SHORT_TOKENS, count * _CHOICES, plan.seed + 11)
    lengths: dict[str, int] = {}
    for start in range(0, len(texts), plan.streams):
        some = texts[start : start + plan.streams]
        for text, one in zip(
            some, await asyncio.gather(*(ask(there.inference, chat(x, tokens)) for x in some)), strict=True
        ):
            lengths[text] = one.tokens
        if sum(length == tokens for length in lengths.values()) >= count:
            break
    return sorted(lengths, key=lambda text: -lengths[text])[:count]


class _Warm:
    """Knows when every stream has given so many pieces."""

    def __init__(self, streams: int, pieces: int) -> None:
        self._streams, self._pieces = streams, pieces
        self.reached = asyncio.Event()

    def counter(self) -> Callable[[], None]:
        """To be called at every piece of one stream."""
        count = 0

        def piece() -> None:
            nonlocal count
            count += 1
            if count == self._pieces:
                self._streams -= 1
                if not self._streams:
                    self.reached.set()

        return piece
