"""Puts a release that has come in force, on trial first, and settles how the trial went.

A trial is noted on disk before anything is asked of the engine: an engine that dies of the release finds
the launcher counting. A refusal (a failed self-test, a damaged file) ends the trial at once and what served
goes on serving; too little memory is no fault of the release and is tried again later. A node that is left
with nothing to serve gives its bad releases another chance, ever less often: what spoke against one may
have been this box on a bad day. The release on trial
is the current one once it has answered, or served for a while without being asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from edge.activation import Activator
from edge.local import LocalState
from edge.ports import Clock
from edge.releases import precisions_here
from edge.slot_file import SlotFile
from edge.slots import Slots
from edge.updater.events import (
    FilesDamaged,
    ReleaseForgiven,
    ReleaseOffered,
    ReleaseProved,
    ReleaseReturned,
    UpdaterSink,
)
from edge.updater.threads import in_thread
from release.listing import Found
from release.manifest import Manifest
from release.store import Store
from wire.description import ModelInfo
from wire.errors import NotFound, Overloaded, PreconditionFailed, WeirError

_AGAIN_S, _MOST_AGAIN_S = 10.0, 600.0
_CHECK_AGAIN_S = 600.0
_LAST_RESORT_S, _MOST_LAST_RESORT_S = 60.0, 3600.0


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """`prove_after_s`: how long a release must have served before it counts as proved without an answer.

    `gives_way_after_s`: how long nothing may have served before another release than the one that does not
    start is tried.
    """

    prove_after_s: float = 20.0
    pinned: int | None = None
    gives_way_after_s: float = 120.0


@dataclass(frozen=True, slots=True)
class TrialParts:
    """What trials look at and act through. `arrived` is told of releases before one is put in force."""

    store: Store
    slots: SlotFile
    local: LocalState
    activator: Activator
    sink: UpdaterSink
    clock: Clock
    arrived: Callable[[Manifest], None]


class Trials:
    """Of one model at a time."""

    def __init__(self, parts: TrialParts, settings: TrialSettings) -> None:
        self._parts, self._settings = parts, settings
        self._serving = ("", math.inf)  # the release on trial that serves, and since when
        self._again = ("", -math.inf)  # a release that was refused, and when to try it once more
        self._refusals = 0  # of that one, in a row
        self._silent_since = math.inf
        self._last_resorts = 0  # since something served
        self._next_resort = math.inf
        self._checked: dict[str, float] = {}

    async def step(self, model: str, target: str, here: Mapping[str, Found], *, more_is_coming: bool) -> Slots:
        """Goes as far as can be gone now; the slots after that. `more_is_coming`: 8-bit of the target is on its way."""
        parts = self._parts
        slots = await in_thread(parts.slots.read, model)
        slots = await self._mend(model, slots, here)
        served = parts.local.served if parts.local.available else None
        if served is None:
            self._serving = ("", math.inf)
            self._silent_since = min(self._silent_since, parts.clock())
            return await self._first(model, slots, target, here)
        self._silent_since, self._last_resorts, self._next_resort = math.inf, 0, math.inf
        if slots.trial and served.release == slots.trial:
            return await self._prove(model, slots, served)
        if served.release == slots.current and served.precision != slots.precision:
            slots = await self._change(model, lambda now: now.serving(served.precision))
        if served.release == target:
            return await self._arrived(model, slots, served)
        if target not in here or target in slots.bad:
            return slots
        if target == self._again[0] and parts.clock() < self._again[1]:
            return slots
        bits = self._bits(here[target], served, more_is_coming=more_is_coming)
        return slots if not bits else await self._try(model, here[target], bits)

    async def _first(self, model: str, slots: Slots, target: str, here: Mapping[str, Found]) -> Slots:
        """Nothing serves: the launcher starts an engine as soon as the slots name a release that is here.

        One that was proved and does not start any more must not keep the one out that would.
        """
        if slots.bad and not slots.to_start and (target not in here or target in slots.bad):
            return await self._last_resort(model, slots)
        gives_way = self._parts.clock() - self._silent_since >= self._settings.gives_way_after_s
        if (slots.to_start and not gives_way) or target not in here or target in slots.bad:
            return slots
        self._parts.arrived(here[target].manifest)
        return await self._change(model, lambda now: now.offered(target) if gives_way or not now.to_start else now)

    async def _last_resort(self, model: str, slots: Slots) -> Slots:
        """Nothing but bad releases is left: the one that has been bad longest gets another chance, when it is due."""
        now = self._parts.clock()
        if self._next_resort == math.inf:
            wait = _LAST_RESORT_S * 2.0 ** min(self._last_resorts, 20)
            self._next_resort = now + min(_MOST_LAST_RESORT_S, wait)
        if now < self._next_resort:
            return slots
        self._last_resorts, self._next_resort = self._last_resorts + 1, math.inf
        release, reason = next(iter(slots.bad.items()))
        self._checked.pop(release, None)
        self._parts.sink.emit(ReleaseForgiven(now, model, release, reason))
        return await self._change(model, lambda at_rest: at_rest.forgiven(release))

    async def _arrived(self, model: str, slots: Slots, served: ModelInfo) -> Slots:
        """What is wanted serves, and is not on trial."""
        if slots.trial:  # nobody wants that one any more, and no start should take it up
            return await self._change(model, lambda now: _dropped(now, slots.trial))
        if slots.current != served.release:
            return await self._change(model, lambda now: now.proved(served.release, served.precision))
        return slots

    async def _try(self, model: str, found: Found, bits: int) -> Slots:
        parts, release = self._parts, found.manifest.id
        parts.arrived(found.manifest)
        slots = await self._change(model, lambda now: now.offered(release).starting())
        if slots.trial != release:
            return slots
        parts.sink.emit(ReleaseOffered(parts.clock(), model, release, bits))
        error = await parts.activator.attempt(found.path, release, bits, "a release on trial")
        if error is None:
            return slots
        self._refusals = self._refusals + 1 if self._again[0] == release else 0
        self._again = (release, parts.clock() + min(_MOST_AGAIN_S, _AGAIN_S * 2.0 ** min(self._refusals, 20)))
        return await self._refused(model, found, error)

    async def _refused(self, model: str, found: Found, error: WeirError) -> Slots:
        """Only what speaks against the release ends its trial for good."""
        parts, release = self._parts, found.manifest.id
        passing = isinstance(error, Overloaded)  # too little memory just now
        if not passing and not isinstance(error, PreconditionFailed | NotFound):
            return await in_thread(parts.slots.read, model)  # the engine may be gone: the launcher counts that
        if passing or await self._damaged(found):
            return await self._change(model, lambda now: _dropped(now, release))
        slots = await self._change(model, lambda now: now.failed(error.message) if now.trial == release else now)
        served = parts.local.served
        back = served.release if served is not None else slots.to_start
        parts.sink.emit(ReleaseReturned(parts.clock(), model, release, back, error.message))
        return slots

    async def _prove(self, model: str, slots: Slots, served: ModelInfo) -> Slots:
        parts = self._parts
        if self._serving[0] != served.release:
            self._serving = (served.release, parts.clock())
        for_s = parts.clock() - self._serving[1]
        if parts.local.last_answered != served.release and for_s < self._settings.prove_after_s:
            return slots
        before = slots.current
        slots = await self._change(model, lambda now: now.proved(served.release, served.precision))
        parts.sink.emit(ReleaseProved(parts.clock(), model, served.release, before))
        return slots

    async def _mend(self, model: str, slots: Slots, here: Mapping[str, Found]) -> Slots:
        """A release that failed may only have been damaged on this disk: then it is fetched again."""
        for release in slots.bad:
            found = here.get(release)
            if found is not None and release not in self._checked and await self._damaged(found):
                slots = await self._change(model, lambda now, mended=release: now.forgiven(mended))  # type: ignore[misc]
        return slots

    async def look_at(self, found: Found) -> None:
        """After an engine could not load it: drops what was damaged."""
        await self._damaged(found)

    async def _damaged(self, found: Found) -> bool:
        """Reads its files again, not too often; those that are wrong go, and so the release is incomplete."""
        parts, release = self._parts, found.manifest.id
        if parts.clock() - self._checked.get(release, -math.inf) < _CHECK_AGAIN_S:
            return False
        self._checked[release] = parts.clock()
        gone = await in_thread(parts.store.drop_damaged, found.manifest)
        if gone:
            parts.sink.emit(FilesDamaged(parts.clock(), release, ", ".join(gone)))
        return bool(gone)

    def _bits(self, found: Found, served: ModelInfo, *, more_is_coming: bool) -> int:
        """The precision to put it in force at; 0: not before there is more of it."""
        here, pinned = precisions_here(found), self._settings.pinned
        like = pinned or served.precision
        if like in here:
            return like
        return 0 if more_is_coming or not here else here[0]

    async def _change(self, model: str, how: Callable[[Slots], Slots]) -> Slots:
        return await in_thread(self._parts.slots.change, model, how)


def _dropped(slots: Slots, release: str) -> Slots:
    """Off trial, without a word against it."""
    return replace(slots, trial="", boots=0, crashes=0) if slots.trial == release else slots
