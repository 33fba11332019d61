"""The same client for code without asyncio.

All blocking clients of a process share one event loop in one daemon thread: grpc.aio dislikes
several loops, and a thread each would be waste. It starts with the first client and stops with the
last one that is closed.

Must not know: components, releases, the command line.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError as FutureCancelled
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from weir.client import Answer, AnswerStream, AsyncClient, ClassifyOptions, Options, Prompt
from wire.channel import ClientTls
from wire.classification import Classified
from wire.description import Description
from wire.messages import Committed

_T = TypeVar("_T")


class _Loop:
    """One event loop in a thread, counted by its users."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def join(self) -> None:
        with self._lock:
            self._users += 1
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="weir-client", daemon=True)
                self._thread.start()

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users or self._loop is None or self._thread is None:
                return
            with contextlib.suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(_wind_up(), self._loop).result(5.0)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = self._thread = None

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Runs `work` on the loop and waits for it; interrupting the wait cancels it."""
        loop = self._loop
        if loop is None:
            work.close()
            raise RuntimeError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except FutureCancelled as error:
            raise RuntimeError("the client was closed while it was waiting") from error
        except BaseException:
            future.cancel()
            raise


async def _wind_up() -> None:
    """Ends what abandoned streams left behind, so that the node is told that nobody listens."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


_shared = _Loop()


class Stream:
    """The pieces of an answer as they come: an iterator of text; see AnswerStream."""

    def __init__(self, inner: AnswerStream) -> None:
        self._inner = inner

    @property
    def committed(self) -> Committed | None:
        return self._inner.committed

    @property
    def final(self) -> Answer:
        """The whole answer. Raises RuntimeError while the stream has not ended."""
        return self._inner.final

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        piece = _shared.run(_next(self._inner))
        if piece is None:
            raise StopIteration
        return piece

    def close(self) -> None:
        """Leaves; what is still being worked on is cancelled."""
        _shared.run(self._inner.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _next(stream: AnswerStream) -> str | None:
    # StopAsyncIteration cannot cross from one thread's future to another's.
    try:
        return await anext(stream)
    except StopAsyncIteration:
        return None


class Client:
    """A node at `target` (host:port or unix:PATH). May be used from several threads."""

    def __init__(self, target: str, *, tls: ClientTls | None = None, token: str | None = None) -> None:
        self.target = target
        self._open = True
        _shared.join()
        try:
            self._inner = _shared.run(_connect(target, tls, token))
        except BaseException:
            _shared.leave()
            raise

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Stream:
        """The answer piece by piece. Raises WeirError at the first piece that cannot be had."""
        self._check()
        return Stream(self._inner.stream(prompt, **options))

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Answer:
        """The whole answer. Raises WeirError."""
        self._check()
        return _shared.run(self._inner.generate(prompt, **options))

    def classify(self, text: str, **options: Unpack[ClassifyOptions]) -> Classified:
        """The text's label, with every label's score and where it came from. Raises WeirError."""
        self._check()
        return _shared.run(self._inner.classify(text, **options))

    def describe(self, *, deadline_s: float = 5.0) -> Description:
        """What the node serves. Raises WeirError."""
        self._check()
        return _shared.run(self._inner.describe(deadline_s=deadline_s))

    def close(self) -> None:
        """Ends the connection; closing twice is fine."""
        if self._open:
            self._open = False
            _shared.run(self._inner.close())
            _shared.leave()

    def _check(self) -> None:
        if not self._open:
            raise RuntimeError("the client is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _connect(target: str, tls: ClientTls | None, token: str | None) -> AsyncClient:
    # The channel belongs to the loop that makes it.
    return AsyncClient(target, tls=tls, token=token)
