"""Brings one file into the store: from the first source that has it, chunk by chunk, taken up after any break.

Sources are asked in order. One that fails rests for a while, ever longer, and the next is asked; one that
has not got the file, or sent wrong bytes for it twice, is not asked for it again. So many failures without
a new byte end the attempt; what came stays on disk. A request asks for one chunk at most: whatever
happens, no more than that is ever fetched twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from edge.ports import Clock, Uniform
from edge.updater.events import TransferRefused, UpdaterSink
from edge.updater.pace import LEAST_PIECE, Pace
from edge.updater.sources import Bounds, Source
from edge.updater.threads import in_thread
from release.errors import CorruptRelease, ReleaseError
from release.manifest import MANIFEST_NAME, File, Manifest
from release.objects import object_path
from release.partial import Partial, WrongChunk
from release.store import Store
from release.trust.catalogue import Offer
from release.trust.errors import Absent, FetchFailed

_BUFFER_BYTES = 256 << 10
_WRONG_TWICE = 2
_LOOK_S = 0.5
_RATE_WEIGHT = 0.4


@dataclass(frozen=True, slots=True)
class Patience:
    """Failures in a row without a byte before a file is given up for now, and how long a failed source rests."""

    failures: int = 6
    first_rest_s: float = 0.5
    most_rest_s: float = 20.0


@dataclass(slots=True)
class _Standing:
    """Of one source: when it may be asked again, and how often it failed in a row."""

    again_at: float = 0.0
    failures: int = 0


class Fetcher:
    """Of one node. `rate` is what the way to the files carries at its best, in bytes a second; None: unknown."""

    def __init__(
        self,
        store: Store,
        sources: Sequence[Source],
        sink: UpdaterSink,
        clock: Clock,
        uniform: Uniform,
        *,
        patience: Patience | None = None,
    ) -> None:
        self._store, self._sources, self._sink, self._clock, self._uniform = store, sources, sink, clock, uniform
        self._patience = patience or Patience()
        self._standing = {source.name: _Standing() for source in sources}
        self.rate: float | None = None
        self.kept_bytes = 0  # that came and stood: what was wrong does not count

    async def file(
        self, release: str, file: File, pace: Callable[[], Pace], moved: Callable[[int, Source], None]
    ) -> None:
        """Returns once the file is in the store. `pace` is asked before every piece, `moved` told of what came.

        Raises FetchFailed when no source gave it, CorruptRelease when the manifest contradicts itself, OutOfSpace,
        OSError, and whatever `pace` raises to stop it.
        """
        if self._store.has(file):
            return
        with await in_thread(self._store.partial, file) as partial:
            attempt, before = _Attempt(self, release, partial, pace, moved), partial.have
            try:
                while partial.missing and not self._store.has(file):
                    await attempt.step()
            finally:
                self.kept_bytes += max(0, partial.have - before)
            if not self._store.has(file):
                await in_thread(partial.finish)

    async def manifest(self, offer: Offer, moved: Callable[[int, Source], None]) -> tuple[Manifest, bytes]:
        """The one that was signed for, from the first source that has it. Raises ReleaseError."""
        last: ReleaseError = Absent(f"no source has the manifest of {offer.release}")
        for source in self._sources:
            try:
                content = await source.get(offer.path, offer.bytes)
                moved(len(content), source)
                return offer.manifest(content), content
            except ReleaseError as error:
                last = error
                if not isinstance(error, Absent):
                    self.refused(offer.release, MANIFEST_NAME, source, str(error))
        raise last

    def next_source(self, without: frozenset[str]) -> tuple[Source, float] | None:
        """Whom to ask, and for how long to wait before; None when nobody is left."""
        now = self._clock()
        left = [source for source in self._sources if source.name not in without]
        if not left:
            return None
        ready = [source for source in left if self._standing[source.name].again_at <= now]
        source = ready[0] if ready else min(left, key=lambda one: self._standing[one.name].again_at)
        return source, max(0.0, self._standing[source.name].again_at - now)

    def failed(self, source: Source) -> None:
        """It rests: twice as long each time, within bounds, and not in step with other nodes."""
        standing, patience = self._standing[source.name], self._patience
        rest = min(patience.most_rest_s, patience.first_rest_s * 2.0**standing.failures)
        standing.failures = min(standing.failures + 1, 32)
        standing.again_at = self._clock() + rest * (0.5 + self._uniform())

    def went_well(self, source: Source, seconds: float, count: int) -> None:
        self._standing[source.name] = _Standing()
        if seconds > 0 and count >= LEAST_PIECE:  # a smaller one tells of distance
            sample = count / seconds
            self.rate = sample if self.rate is None else self.rate + _RATE_WEIGHT * (sample - self.rate)

    def refused(self, release: str, name: str, source: Source, message: str) -> None:
        self._sink.emit(TransferRefused(self._clock(), release, name, source.name, message))

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def most_failures(self) -> int:
        return self._patience.failures


class _Attempt:
    """One file on its way."""

    def __init__(
        self,
        fetcher: Fetcher,
        release: str,
        partial: Partial,
        pace: Callable[[], Pace],
        moved: Callable[[int, Source], None],
    ) -> None:
        self._fetcher, self._release, self._partial, self._pace, self._moved = fetcher, release, partial, pace, moved
        self._failures = 0
        self._wrong: dict[str, int] = {}
        self._without: frozenset[str] = frozenset()
        self._last: FetchFailed | None = None
        self._resume_at = 0.0
        self._spoilt_tail = True  # the first wrong chunk may be what an earlier process left

    async def step(self) -> None:
        """One piece from one source, or one failure. Raises FetchFailed when there is no point in going on."""
        pace = await self._rested()
        found = self._fetcher.next_source(self._without)
        name = self._partial.file.name
        if found is None or self._failures >= self._fetcher.most_failures:
            raise FetchFailed(f"{name} could not be fetched: {self._last or 'no source has it'}")
        source, wait = found
        if wait > 0:
            await asyncio.sleep(min(wait, _LOOK_S))
            return
        before = self._partial.have
        try:
            await self._piece(source, pace)
        except WrongChunk as error:
            self._blame(source, error)
        except Absent as error:
            self._last = error
            self._without |= {source.name}
        except FetchFailed as error:
            self._last = error
            self._failures = 0 if self._partial.have > before else self._failures + 1
            self._fetcher.failed(source)
            self._fetcher.refused(self._release, name, source, str(error))
        else:
            self._failures = 0

    async def _rested(self) -> Pace:
        """The pace to go on at, once it is time to."""
        while True:
            pace = self._pace()
            left = self._resume_at - self._fetcher.clock()
            if left <= 0 or pace.share >= 1:
                return pace
            await asyncio.sleep(min(left, _LOOK_S))

    async def _piece(self, source: Source, pace: Pace) -> None:
        """Asks for a piece and keeps what comes, also when it breaks off."""
        clock, partial = self._fetcher.clock, self._partial
        first, size = partial.have, partial.file.bytes
        end = first + pace.piece(partial.to_chunk_end, self._fetcher.rate)
        began, first_at, buffer, count, at_first = clock(), None, bytearray(), 0, 0
        try:
            path, budget = object_path(partial.file.sha256), pace.budget_bytes if source.costs else None
            bounds = Bounds(budget, lambda unwanted: self._moved(unwanted, source))
            async with aclosing(source.read(path, first, end, size, bounds)) as pieces:
                async for data in pieces:
                    if first_at is None:
                        first_at, at_first = clock(), len(data)
                    count += len(data)
                    buffer += data
                    if len(buffer) >= _BUFFER_BYTES:
                        await self._keep(buffer, source)
        finally:
            await self._keep(buffer, source)
        if not count:
            raise FetchFailed(f"{source.name} sent nothing of {partial.file.name}")
        now = clock()
        spread = count > at_first and first_at is not None and now > first_at
        self._fetcher.went_well(source, *((now - first_at, count - at_first) if spread else (now - began, count)))  # type: ignore[operator]
        self._resume_at = now + pace.rest_s(count, now - began)

    async def _keep(self, buffer: bytearray, source: Source) -> None:
        if buffer:
            data = bytes(buffer)
            buffer.clear()
            self._moved(len(data), source)
            await in_thread(self._partial.append, data)

    def _blame(self, source: Source, error: CorruptRelease) -> None:
        """A wrong chunk is the source's fault, unless its beginning was here before."""
        if isinstance(error, WrongChunk) and error.kept_tail and self._spoilt_tail:
            self._spoilt_tail = False
            return
        self._last = FetchFailed(f"{source.name}: {error}")
        self._failures += 1
        self._wrong[source.name] = self._wrong.get(source.name, 0) + 1
        if self._wrong[source.name] >= _WRONG_TWICE:
            self._without |= {source.name}
        self._fetcher.refused(self._release, self._partial.file.name, source, str(error))
