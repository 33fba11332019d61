"""One model comes to one empty node, over a real socket that a recorded link shapes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from bench.link import Link
from bench.transfer.goods import Goods, load_of
from bench.transfer.node import Node
from bench.transfer.origin import Mount, Origin
from bench.transfer.replay import replay
from bench.transfer.simulate import Arrival, Way
from bench.transfer.traces import Trace

_PATIENCE, _MARGIN_S = 3.0, 240.0  # how much longer than the trace says a delivery may take


async def deliver(origin: Origin, goods: Goods, way: Way, trace: Trace, folder: Path) -> Arrival:
    """Starts a node with nothing and waits until it answers, and until it answers from 8-bit weights.

    Times count from the start of the node's first process, its own start included; bytes are those at the
    socket, metadata and headers included. Raises NodeFailed.
    """
    load = load_of(goods)
    most_s = _PATIENCE * trace.seconds_for(load.total) + _MARGIN_S
    mount = f"{way}-{trace.name}"
    async with served(origin, mount, goods) as link:
        shaping = asyncio.create_task(replay(link, trace))
        settings = {"bandwidth_share": 1.0}  # nothing else is on this link
        try:
            async with Node(folder, f"http://{link.address}/{mount}", goods.root, settings) as node:
                first = await node.answers(most_s)
                if len(goods.stages) > 1:  # what comes second is published once the first one serves
                    origin.mounts[mount].metadata = goods.stages[1]
                eight = first if way is Way.EIGHT_ONLY else await node.answers(most_s, precision=8)
                return Arrival(trace.name, way, first, eight, link.count().down)
        finally:
            shaping.cancel()
            await asyncio.gather(shaping, return_exceptions=True)


@contextlib.asynccontextmanager
async def served(origin: Origin, mount: str, goods: Goods) -> AsyncIterator[Link]:
    """A link to a repository at its first stage, until the block ends."""
    origin.mounts[mount] = Mount(goods.stages[0], goods.objects)
    try:
        async with Link("127.0.0.1", origin.port) as link:
            yield link
    finally:
        del origin.mounts[mount]
