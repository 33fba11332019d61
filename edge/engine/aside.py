"""Work on weights beside decoding: two threads that step back behind those which answer.

One verifies releases, one loads them and gives memory back, so that neither waits for the other's work. Must not
know: what is verified or loaded.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_NICE, _NICEST = 10, 19

_T = TypeVar("_T")


class Aside:
    """Used in one event loop, which must be running when work is given. `threads` are those of a session."""

    def __init__(self, threads: int) -> None:
        self._checking = ThreadPoolExecutor(1, "check", _step_back)
        # With several threads a session makes its own, which would inherit the step back.
        self._loading = ThreadPoolExecutor(1, "load", *((_step_back,) if threads == 1 else ()))

    async def check(self, work: Callable[[], _T]) -> _T:
        """Verifies."""
        return await asyncio.get_running_loop().run_in_executor(self._checking, work)

    async def load(self, work: Callable[[], _T]) -> _T:
        """Loads, or gives memory back."""
        return await asyncio.get_running_loop().run_in_executor(self._loading, work)

    def later(self, work: Callable[[], object]) -> None:
        """As `load`, for what nobody waits for."""
        self._loading.submit(work)

    def close(self) -> None:
        """What has not begun never will."""
        for pool in (self._checking, self._loading):
            pool.shutdown(wait=False, cancel_futures=True)


def _step_back() -> None:
    """The calling thread gets what the others leave. Does nothing where the system keeps no such count per thread."""
    if hasattr(os, "setpriority"):
        thread = threading.get_native_id()
        # Further down than it is, which anybody may go.
        os.setpriority(os.PRIO_PROCESS, thread, min(os.getpriority(os.PRIO_PROCESS, thread) + _NICE, _NICEST))
