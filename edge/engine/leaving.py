"""When weights that were replaced have really gone: not before the last who holds them lets go, whoever that is.

Must not know: what weights are, who holds them.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Coroutine
from typing import Any


class Leaving:
    """Runs `settle` after each of those watched has gone. Lives in one event loop; the end may come in any thread."""

    def __init__(self, settle: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._settle = settle
        self._watched: list[weakref.ref[object]] = []
        self._settling: set[asyncio.Task[None]] = set()

    def watch(self, weights: object) -> None:
        """Called in the event loop."""
        loop = asyncio.get_running_loop()

        def gone(ref: weakref.ref[object]) -> None:  # in any thread
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._left, ref)

        self._watched.append(weakref.ref(weights, gone))

    def _left(self, ref: weakref.ref[object]) -> None:
        self._watched = [other for other in self._watched if other is not ref]
        task = asyncio.create_task(self._settle())
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
