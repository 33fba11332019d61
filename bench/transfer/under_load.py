"""A node answers at a steady pace while releases and precisions come and go: does a client notice?

Three releases of one model are published one after another: 4-bit weights alone, the nested release with the
same 4-bit weights, and the 8-bit weights as a release of their own. So the node downloads in the background,
changes release, goes from 4 to 8 bits, is put back to 4 by hand (and returns to 8 by its own plan), and changes
release once more. Requests are 32 tokens in and 8 out, 200 a minute.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.link import Shape
from bench.load import OpenLoop, Outcome, Pace, Summary, prompt_of, summarize
from bench.transfer.delivery import served
from bench.transfer.goods import Goods
from bench.transfer.node import Node
from bench.transfer.origin import Origin
from bench.transfer.replay import DELAY_S
from edge.config import available_cpus
from release.store import RELEASES
from runtime.tokenizer import Tokenizer
from wire.deadline import Deadline
from wire.grpc_client import EngineControlClient, InferenceClient
from wire.messages import Constraints, GenerateRequest, Sampling, TierConstraint
from wire.service import Call

PER_MINUTE, TOKENS_IN, TOKENS_OUT = 200, 32, 8
STEADY = ("steady 4-bit", "steady 8-bit")
CHANGES = ("release change, download and upgrade", "downgrade", "second release change")
STEPS = len(STEADY) + len(CHANGES)  # that `told` is called after
_BYTES_PER_S = 8e6
_PROMPTS = 32
_SETTLE_S = 5.0
_MOST_S = 300.0
_ACTIVATE_S = 60.0


@dataclass(frozen=True, slots=True)
class UnderLoad:
    """What clients saw, by phase."""

    phases: dict[str, Summary]
    failures: tuple[str, ...]

    @property
    def failed(self) -> int:
        return sum(summary.failed for summary in self.phases.values())

    @property
    def p99_ratio(self) -> float:
        """The worst change against the better of the two steady phases, which is what a client compares with."""
        return self._worst / min(self.phases[name].p99_ms for name in STEADY)

    @property
    def p99_ratio_same_weights(self) -> float:
        """The same against the slower precision's steady phase: every change ends or begins at that one."""
        return self._worst / max(self.phases[name].p99_ms for name in STEADY)

    @property
    def _worst(self) -> float:
        return max(self.phases[name].p99_ms for name in CHANGES)


async def serve_through_changes(
    origin: Origin, goods: Goods, folder: Path, *, steady_s: float, seed: int, told: Callable[[], None]
) -> UnderLoad:
    """`goods` offers the three releases. Raises NodeFailed."""
    mount = "under-load"
    async with AsyncExitStack() as stack:
        link = await stack.enter_async_context(served(origin, mount, goods))
        link.shape(Shape(_BYTES_PER_S, DELAY_S))
        settings = {"threads": available_cpus()}  # what a node takes by itself
        node = await stack.enter_async_context(Node(folder, f"http://{link.address}/{mount}", goods.root, settings))
        await node.answers(_MOST_S, precision=4, release=goods.releases[0].id)
        client, control = InferenceClient(node.grpc), EngineControlClient(node.engine)
        stack.push_async_callback(client.close)
        stack.push_async_callback(control.close)
        ask = _asking(Tokenizer.load(node.store / RELEASES / goods.releases[0].id, (), None), seed)
        load = OpenLoop(client, ask, Pace(PER_MINUTE, seed))
        async with load:
            await _phase(load, STEADY[0], steady_s, told)
            load.phase(CHANGES[0])
            origin.mounts[mount].metadata = goods.stages[1]
            await node.answers(_MOST_S, precision=8, release=goods.releases[1].id)
            await asyncio.sleep(_SETTLE_S)
            told()
            await _phase(load, STEADY[1], steady_s, told)
            load.phase(CHANGES[1])
            await control.activate("", 4, Call(Deadline.after(_ACTIVATE_S)))
            await node.answers(_MOST_S, precision=8)
            await asyncio.sleep(_SETTLE_S)
            told()
            load.phase(CHANGES[2])
            origin.mounts[mount].metadata = goods.stages[2]
            await node.answers(_MOST_S, precision=8, release=goods.releases[2].id)
            await asyncio.sleep(_SETTLE_S)
            told()
    return _account(load.outcomes)


async def _phase(load: OpenLoop, name: str, seconds: float, told: Callable[[], None]) -> None:
    load.phase(name)
    await asyncio.sleep(seconds)
    told()


def _asking(tokenizer: Tokenizer, seed: int) -> Callable[[int], GenerateRequest]:
    draw = random.Random(seed)
    prompts = [prompt_of(tokenizer, TOKENS_IN, draw) for _ in range(_PROMPTS)]

    def ask(number: int) -> GenerateRequest:
        return GenerateRequest(
            prompt=prompts[number % _PROMPTS],
            sampling=Sampling(max_tokens=TOKENS_OUT, temperature=0.0),
            constraints=Constraints(TierConstraint.EDGE_ONLY),
        )

    return ask


def _account(outcomes: list[Outcome]) -> UnderLoad:
    by_phase = {name: [one for one in outcomes if one.phase == name] for name in (*STEADY, *CHANGES)}
    phases = {name: summarize(found) for name, found in by_phase.items()}
    failures = tuple(sorted({f"{one.phase}: {one.error}: {one.message}" for one in outcomes if one.error}))
    return UnderLoad(phases, failures)
