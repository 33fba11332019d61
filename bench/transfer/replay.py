"""Puts a recorded link's rates in force on a real one, as they change."""

from __future__ import annotations

import asyncio

from bench.link import Link, Shape
from bench.transfer.traces import Trace

DELAY_S = 0.01
_LEAST_BYTES_PER_S = 64.0  # a link knows no rate of 0; this is next to nothing


async def replay(link: Link, trace: Trace, delay_s: float = DELAY_S) -> None:
    """From the trace's start until cancelled, over and over."""
    loop = asyncio.get_running_loop()
    began, at = loop.time(), 0.0
    while True:
        link.shape(Shape(max(trace.rate_at(at), _LEAST_BYTES_PER_S), delay_s))
        at = trace.next_change(at)
        await asyncio.sleep(max(0.0, began + at - loop.time()))
