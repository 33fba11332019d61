"""The signed list of releases, kept fresh: asks the repository, then the siblings, and believes none of them.

Verification is release.trust's and runs in a thread; only the bytes are fetched here. What is refused is
told once, until it is another fault, and never ends anything: what was verified last stays in force, also
over a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from datetime import datetime
from pathlib import Path

from edge.ports import Clock
from edge.updater.events import CatalogueRefused, CatalogueTaken, UpdaterSink
from edge.updater.sources import Source
from edge.updater.threads import in_thread, stoppable
from release.errors import ReleaseError
from release.store import Store
from release.trust.client import Catalogue, TrustClient
from release.trust.errors import FetchFailed

_FILE_S, _LEAST_BYTES_PER_S = 30.0, 1000.0  # a thin link has longer for a longer file


class Catalogues:
    """What is offered to this node. Without a trusted root nothing is, and bundles alone bring releases."""

    def __init__(
        self,
        store: Store,
        trusted_root: Path | None,
        sources: Sequence[Source],
        sink: UpdaterSink,
        clock: Clock,
        *,
        now: Callable[[], datetime],
    ) -> None:
        """`sources` in the order in which they are asked for metadata. Reads the root and what is known: blocking."""
        self._store, self._root, self._sources = store, trusted_root, tuple(sources)
        self._sink, self._clock, self._now = sink, clock, now
        self._client: TrustClient | None = None
        self._told: dict[str, str] = {}
        self.known: Catalogue | None = None
        self.problem = ""

    async def load(self) -> None:
        """Takes what was verified before, here or by an import, so that a node without a network knows its offers."""
        self._client = None  # what another process has verified since is read anew
        try:
            client = await in_thread(self._trust)
            if client is not None:
                self.known = await in_thread(client.known, self._now())
        except (ReleaseError, OSError) as error:
            self._refuse(str(self._root), error)

    async def refresh(self, moved: Callable[[int, Source], None]) -> bool:
        """Asks until one source is believed. Says whether one was."""
        for source in self._sources:
            try:
                client = await in_thread(self._trust)
                if client is None:
                    return False
                taken = await self._ask(client, source, moved)
            except (ReleaseError, OSError) as error:
                self._refuse(source.name, error)
                continue
            self._take(source, taken)
            return True
        await self.load()
        return False

    async def _ask(self, client: TrustClient, source: Source, moved: Callable[[int, Source], None]) -> Catalogue:
        bridge = _Bridge(source, asyncio.get_running_loop(), moved)
        now = self._now()

        def work() -> Catalogue:
            with self._store.locked("trust"):
                return client.refresh(bridge, now)

        return await stoppable(bridge.stop, work)

    def _take(self, source: Source, taken: Catalogue) -> None:
        before, self.known, self.problem = self.known, taken, ""
        self._told.clear()
        if before is None or before.versions != taken.versions or before.clock != taken.clock:
            issued, expires = taken.issued.isoformat(), taken.expires.isoformat()
            self._sink.emit(CatalogueTaken(self._clock(), source.name, issued, expires, len(taken.offers), taken.clock))

    def _refuse(self, source: str, error: Exception) -> None:
        self.problem = f"{source}: {error}"
        kind = type(error).__name__
        if self._told.get(source) != kind:
            self._told[source] = kind
            self._sink.emit(CatalogueRefused(self._clock(), source, kind, str(error)))

    def _trust(self) -> TrustClient | None:
        if self._client is None and self._root is not None:
            self._client = TrustClient(self._store.trust, self._root.read_bytes())
        return self._client


class _Bridge:
    """A release.trust Fetch for a thread, whose fetching the event loop does: one client and its timeouts serve all."""

    def __init__(self, source: Source, loop: asyncio.AbstractEventLoop, moved: Callable[[int, Source], None]) -> None:
        self._source, self._loop, self._moved = source, loop, moved
        self._stopped = False
        self._underway: Future[bytes] | None = None

    def __call__(self, path: str, most_bytes: int) -> bytes:
        if self._stopped:
            raise FetchFailed("the node is stopping")
        within_s = _FILE_S + most_bytes / _LEAST_BYTES_PER_S
        self._underway = asyncio.run_coroutine_threadsafe(self._get(path, most_bytes, within_s), self._loop)
        try:
            return self._underway.result(within_s + 5)
        except TimeoutError as error:
            raise FetchFailed(f"{self._source.name} did not send {path} within {within_s:.0f} s") from error
        except CancelledError as error:
            raise FetchFailed("the node is stopping") from error

    def stop(self) -> None:
        self._stopped = True
        if self._underway is not None:
            self._underway.cancel()

    async def _get(self, path: str, most_bytes: int, within_s: float) -> bytes:
        async with asyncio.timeout(within_s):
            content = await self._source.get(path, most_bytes)
        self._moved(len(content), self._source)
        return content
