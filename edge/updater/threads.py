"""Blocking work of an asyncio program, that is never left running behind its caller's back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs `work` in a thread. A caller that is cancelled still waits for it to end, for it may hold files."""
    return await stoppable(lambda: None, work, *args, **kwargs)


async def stoppable(stop: Callable[[], None], work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As `in_thread`; `stop` is called when the caller is cancelled, to make the work end soon."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # nobody is left to hear of it
        raise
